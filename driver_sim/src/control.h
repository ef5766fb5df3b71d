/* SPDX-License-Identifier: Apache-2.0
 *
 * The control interface of the simulated driver, for C and anything that can call C.
 *
 * Functions that return text write at most `capacity` bytes, the last one zero, and return the number
 * of bytes that the whole text needs; `out` may be null. Text is made of lines. All functions can be
 * called from any thread.
 */
#ifndef CUDA_DRIVER_SIM_CONTROL_H
#define CUDA_DRIVER_SIM_CONTROL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

int cudaDriverSimInterfaceVersion(void);  /* 3 */

/* The library in the folder `front` stands in front of the real driver that the environment variable
 * CUDA_DRIVER_SIM_REAL names; the other one simulates. Opens the real driver, which otherwise the first
 * driver call does, and says why it cannot, or nothing. In the simulation there is nothing to open. */
size_t cudaDriverSimOpenReal(char *out, size_t capacity);
int cudaDriverSimIsFront(void);
/* The path of the real driver, or nothing in the simulation. */
size_t cudaDriverSimReal(char *out, size_t capacity);

/* "kind count" for every kind of object of which some are live. */
size_t cudaDriverSimLive(char *out, size_t capacity);
/* "function count" for every function called since the last reset. */
size_t cudaDriverSimCalls(char *out, size_t capacity);
/* The same for the calls that forked children made, and theirs, of a process that had called cuInit. */
size_t cudaDriverSimCallsInChildren(char *out, size_t capacity);
/* First the total, then "function result" for each refused call since the last reset (bounded). */
size_t cudaDriverSimRefused(char *out, size_t capacity);
/* First the total, then "function other_function" for each call since the last reset that came beside another thread's
 * begin or end of a capture of the same stream, or beside its call on the same capture, graph or executable graph, or
 * that was a launch of a graph with user objects beside its query or synchronise of the same stream, or the other way
 * round (bounded). A real driver does not keep such calls apart; in front of one none are seen. */
size_t cudaDriverSimOverlaps(char *out, size_t capacity);
/* The names of all functions, and of those that were asked for and are absent. */
size_t cudaDriverSimFunctions(char *out, size_t capacity);
size_t cudaDriverSimAbsent(char *out, size_t capacity);
/* "name number" of every result that the driver can answer. */
size_t cudaDriverSimResults(char *out, size_t capacity);

/* Answers the nth call of a function from now on with `result` and without effect; with `sticky` also
 * every later one. With `effect` the call is made, and answered with `result` whatever the driver has answered.
 * Each armed failure counts every call, also one that another answers. A call that several match is answered,
 * and counted as fired, by the one armed last. Returns an id, or -1 when there is no such function. */
int cudaDriverSimFail(const char *name, unsigned long long nth, int result, int sticky, int effect);
unsigned long long cudaDriverSimFired(int failure);
void cudaDriverSimDisarm(int failure);
/* Forgets counts, refused calls and overlaps; objects, logs and armed failures stay. */
void cudaDriverSimReset(void);

/* Logs are independent of one another. An open one lists all calls from now on; a closed one can be read
 * until it is forgotten. */
int cudaDriverSimOpenLog(void);
void cudaDriverSimCloseLog(int log);
void cudaDriverSimForgetLog(int log);
/* First the total, then "function result" for each call, in the order of the answers (bounded). */
size_t cudaDriverSimLog(int log, char *out, size_t capacity);

/* For the process at the top: lets processes that are started from now on, and those that they start, tell what
 * they leave live or are refused. Says what their environment has to hold as CUDA_DRIVER_SIM_REPORTS; "told" when
 * this process tells another one already; nothing when there can be no reports. */
size_t cudaDriverSimOpenReports(char *out, size_t capacity);
/* What this process and they have left live or were refused up to now, as it is said at the end. */
size_t cudaDriverSimSummary(char *out, size_t capacity);
/* For the process that calls it: what cudaDriverSimEnd does, which is to be called last of all. With `say` it writes
 * the summary to standard error; with an exit code it ends the process by it when something was left live. */
void cudaDriverSimAtEnd(int say, int exit_code);
void cudaDriverSimEnd(void);

/* Whether the three below have an effect: the work of a real driver cannot be held. */
int cudaDriverSimCanHold(void);
/* Holds work on streams back until something waits for it. Calls nest; the last release runs it. */
void cudaDriverSimHold(int hold);
/* Runs the held work of a stream and what it depends on, or with null all of it. Returns a CUresult. */
int cudaDriverSimRun(void *stream);
/* Whether held work runs in an order picked pseudo-randomly among the streams that may go on. */
void cudaDriverSimInterleave(int on, unsigned long long seed);

/* Microseconds of one pool allocate-and-free pair, and of one round of virtual memory (reserve, create,
 * map, access, unmap, release, free), measured over `rounds`; negative when a call is refused. */
double cudaDriverSimTimePoolPair(unsigned long long rounds, size_t bytes);
double cudaDriverSimTimeVirtualRound(unsigned long long rounds, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
