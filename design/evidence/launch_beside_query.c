// SPDX-License-Identifier: Apache-2.0
//
// A launch that is answered with CUDA_ERROR_UNKNOWN, though the graph runs: one thread launches a graph into a stream,
// four others ask that stream for its work.
//
//     cc -O2 -pthread -I"$CUDA_HOME/include" launch_beside_query.c -o launch_beside_query -lcuda
//     ./launch_beside_query SECONDS [object|none] [query|sync|event|other|locked]
//
// object   the graph keeps a user object (none: it does not)
// query    cuStreamQuery of the stream            sync     cuStreamSynchronize of it
// event    a wait for an event that was recorded in it
// other    cuStreamQuery of another stream        locked   cuStreamQuery of it, never while a launch is made

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRY(call)                                                                    \
    do {                                                                             \
        CUresult answer = (call);                                                    \
        if (answer != CUDA_SUCCESS) {                                                \
            fprintf(stderr, "%s answered %d\n", #call, (int)answer);                 \
            exit(2);                                                                 \
        }                                                                            \
    } while (0)

enum { GRAPHS = 1000, THREADS = 4 };

static CUgraphExec executables[GRAPHS];
static CUcontext context;
static CUstream stream, other;
static const char *what = "query";
static atomic_bool over;
static atomic_long asked;
static pthread_rwlock_t lock;

static void CUDA_CB nothing(void *unused) { (void)unused; }

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void *ask(void *unused) {
    CUevent event;
    (void)unused;
    TRY(cuCtxSetCurrent(context));
    TRY(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    while (!over) {
        CUresult answer = CUDA_SUCCESS;
        if (!strcmp(what, "sync")) {
            answer = cuStreamSynchronize(stream);
        } else if (!strcmp(what, "event")) {
            TRY(cuEventRecord(event, stream));
            answer = cuEventSynchronize(event);
        } else if (!strcmp(what, "locked")) {
            pthread_rwlock_rdlock(&lock);
            answer = cuStreamQuery(stream);
            pthread_rwlock_unlock(&lock);
        } else {
            answer = cuStreamQuery(strcmp(what, "other") ? stream : other);
        }
        if (answer != CUDA_ERROR_NOT_READY)
            TRY(answer);
        ++asked;
    }
    TRY(cuEventDestroy(event));
    return NULL;
}

int main(int count, char **arguments) {
    double until = seconds() + (count > 1 ? atof(arguments[1]) : 5);
    int object = count < 3 || !strcmp(arguments[2], "object");
    if (count > 3)
        what = arguments[3];
    CUdevice device;
    CUdeviceptr number;
    CUevent end;
    unsigned there = 0;
    long launches = 0, unknown = 0, ran = 0;
    pthread_t threads[THREADS];
    pthread_rwlockattr_t fair;
    pthread_rwlockattr_init(&fair);
    pthread_rwlockattr_setkind_np(&fair, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&lock, &fair);

    TRY(cuInit(0));
    TRY(cuDeviceGet(&device, 0));
    TRY(cuDevicePrimaryCtxRetain(&context, device));
    TRY(cuCtxSetCurrent(context));
    TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    TRY(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    TRY(cuMemAlloc(&number, sizeof there));
    TRY(cuEventCreate(&end, CU_EVENT_DISABLE_TIMING));

    // Each graph sets another number: what is there after a launch tells whether it ran.
    for (unsigned i = 0; i < GRAPHS; ++i) {
        CUgraph graph;
        TRY(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        TRY(cuMemsetD32Async(number, i, 1, stream));
        TRY(cuStreamEndCapture(stream, &graph));
        if (object) {
            CUuserObject kept;
            TRY(cuUserObjectCreate(&kept, &number, nothing, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
            TRY(cuGraphRetainUserObject(graph, kept, 1, CU_GRAPH_USER_OBJECT_MOVE));
        }
        TRY(cuGraphInstantiateWithFlags(&executables[i], graph, 0));
        TRY(cuGraphDestroy(graph));
    }
    for (int i = 0; i < THREADS; ++i)
        pthread_create(&threads[i], NULL, ask, NULL);

    while (seconds() < until) {
        unsigned i = (unsigned)(launches++ % GRAPHS);
        pthread_rwlock_wrlock(&lock);
        CUresult answer = cuGraphLaunch(executables[i], stream);
        pthread_rwlock_unlock(&lock);
        if (answer == CUDA_SUCCESS && launches % 64)
            continue;
        if (answer != CUDA_SUCCESS && answer != CUDA_ERROR_UNKNOWN)
            TRY(answer);
        TRY(cuEventRecord(end, stream));
        TRY(cuEventSynchronize(end));
        TRY(cuMemcpyDtoH(&there, number, sizeof there));
        if (answer == CUDA_ERROR_UNKNOWN) {
            ++unknown;
            ran += there == i;
        } else if (there != i) {
            fprintf(stderr, "a launch that was answered with SUCCESS has not run\n");
            exit(2);
        }
    }
    over = 1;
    for (int i = 0; i < THREADS; ++i)
        pthread_join(threads[i], NULL);
    printf("%s, %s: %ld launches, %ld calls beside them; UNKNOWN %ld, of which the graph ran %ld\n",
           object ? "a user object" : "no user object", what, launches, (long)asked, unknown, ran);
    for (unsigned i = 0; i < GRAPHS; ++i)
        TRY(cuGraphExecDestroy(executables[i]));
    TRY(cuEventDestroy(end));
    TRY(cuMemFree(number));
    TRY(cuStreamDestroy(stream));
    TRY(cuStreamDestroy(other));
    TRY(cuDevicePrimaryCtxRelease(device));
    return unknown != 0;
}
