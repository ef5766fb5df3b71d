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

int cudaDriverSimInterfaceVersion(void);

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
/* First the total, then "function result" for each refused call since the last reset (bounded). */
size_t cudaDriverSimRefused(char *out, size_t capacity);
/* The names of all functions, and of those that were asked for and are absent. */
size_t cudaDriverSimFunctions(char *out, size_t capacity);
size_t cudaDriverSimAbsent(char *out, size_t capacity);
/* "name number" of every result that the driver can answer. */
size_t cudaDriverSimResults(char *out, size_t capacity);

/* Answers the nth call of a function from now on with `result` and without effect; with `sticky` also
 * every later one. Returns an id, or -1 when there is no such function. */
int cudaDriverSimFail(const char *name, unsigned long long nth, int result, int sticky);
unsigned long long cudaDriverSimFired(int failure);
void cudaDriverSimDisarm(int failure);
/* Forgets counts, refused calls and armed failures; objects stay. */
void cudaDriverSimReset(void);

void cudaDriverSimStartLog(void);
void cudaDriverSimStopLog(void);
/* First the total, then "function result" for each call, in the order of the answers (bounded). */
size_t cudaDriverSimLog(char *out, size_t capacity);

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
