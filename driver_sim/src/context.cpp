// SPDX-License-Identifier: Apache-2.0
// Primary contexts, contexts made by the program, and the current context of each thread.
#include "graph.h"

#include <pthread.h>

#include <algorithm>

namespace sim {

namespace {

// The contexts that a thread has pushed. Only the end of the thread ends them: a program may call the driver from
// the destructors of its own static objects, behind those of all thread-local ones.
thread_local std::vector<Context *> *pushed = nullptr;

pthread_key_t key_of_ends() {
    static const pthread_key_t key = [] {
        pthread_key_t made;
        if (pthread_key_create(&made, [](void *stack) {
                delete static_cast<std::vector<Context *> *>(stack);
                pushed = nullptr;
            }))
            throw std::bad_alloc();
        return made;
    }();
    return key;
}

std::vector<Context *> &current_stack() {
    if (!pushed) {
        auto made = std::make_unique<std::vector<Context *>>();
        if (pthread_setspecific(key_of_ends(), made.get()))
            throw std::bad_alloc();
        pushed = made.release();
    }
    return *pushed;
}

std::atomic<std::uint64_t> threads_seen{0};

Context *make_context(Device &device, unsigned flags, bool primary) {
    Driver &d = driver();
    auto *context = new Context;
    context->device = &device;
    context->id = d.next_id++;
    context->flags = flags;
    context->is_primary = primary;
    d.contexts.insert(context);
    return context;
}

// Streams, events, plain and host memory end with their context; virtual memory and pools do not.
void end_context(Lock &lock, Context &context) {
    Driver &d = driver();
    forget_work(context);
    d.recent_stream = nullptr;
    for (auto it = d.streams.begin(); it != d.streams.end();) {
        if ((*it)->context == &context) {
            end_capture_of(**it);
            retire(*it);
            it = d.streams.erase(it);
        } else {
            ++it;
        }
    }
    for (auto it = d.events.begin(); it != d.events.end();) {
        if ((*it)->context == &context) {
            retire_event(*it);
            it = d.events.erase(it);
        } else {
            ++it;
        }
    }
    end_memory_of(context);
    if (context.legacy)
        retire(context.legacy);
    context.legacy = nullptr;
    for (auto &entry : context.per_thread) {
        end_capture_of(*entry.second);
        retire(entry.second);
    }
    context.per_thread.clear();
    for (Context *other : d.contexts)
        other->peers.erase(&context);
    context.peers.clear();
    context.alive = false;
    if (context.device->primary == &context) {
        context.device->primary = nullptr;
        context.device->ended_primary = &context;
    }
    go_on(lock);  // what other contexts have waited for is over
}

CUresult known(CUcontext handle, Context *&context) {
    context = reinterpret_cast<Context *>(handle);
    if (!driver().contexts.count(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

// Makes it the one on top of the stack. Says nothing about whether it still lives.
CUresult make_current(CUcontext handle, bool in_place) {
    Context *context;
    if (CUresult bad = known(handle, context); bad == CUDA_ERROR_INVALID_CONTEXT)
        return bad;
    if (in_place && !current_stack().empty())
        current_stack().back() = context;
    else
        current_stack().push_back(context);
    return CUDA_SUCCESS;
}

// What a function with an optional context parameter works on.
CUresult named_or_current(CUcontext handle, Context *&context) {
    return handle ? known(handle, context) : usable_context(context);
}

}  // namespace

Context *current_context() { return pushed && !pushed->empty() ? pushed->back() : nullptr; }

CUresult usable_context(Context *&context) {
    context = current_context();
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return context->fault;
}

Context *primary_context(Device &device) {
    if (!device.primary && device.ended_primary) {  // comes back at its old address, with another number
        device.primary = device.ended_primary;
        device.primary->id = driver().next_id++;
        device.primary->flags = device.primary_flags;
        device.primary->fault = CUDA_SUCCESS;
        device.primary->alive = true;
    }
    if (!device.primary)
        device.primary = make_context(device, device.primary_flags, true);
    return device.primary;
}

std::uint64_t thread_number() {
    thread_local std::uint64_t number = ++threads_seen;
    return number;
}

DRIVER_CALL("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain, 7000, (CUcontext * pctx, CUdevice dev), (pctx, dev)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Device *device = d.device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = reinterpret_cast<CUcontext>(primary_context(*device));
    ++device->retained;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2, 11000, (CUdevice dev), (dev)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Device *device = d.device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device->retained == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->retained == 0 && device->primary)
        end_context(lock, *device->primary);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset_v2, 11000, (CUdevice dev), (dev)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Device *device = d.device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (device->primary)
        end_context(lock, *device->primary);
    device->retained = 0;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState, 7000,
            (CUdevice dev, unsigned int *flags, int *active), (dev, flags, active)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Device *device = d.device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!flags || !active)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = device->primary_flags;
    *active = device->primary != nullptr;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDevicePrimaryCtxSetFlags", cuDevicePrimaryCtxSetFlags_v2, 11000, (CUdevice dev, unsigned int flags),
            (dev, flags)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Device *device = d.device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (flags & ~unsigned(CU_CTX_FLAGS_MASK))
        return CUDA_ERROR_INVALID_VALUE;
    device->primary_flags = flags;
    if (device->primary)
        device->primary->flags = flags;
    return CUDA_SUCCESS;
}

// Partly: only the form of CUDA 12.5; no execution affinity, no CIG.
DRIVER_CALL("cuCtxCreate", cuCtxCreate_v4, 12050,
            (CUcontext * pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev),
            (pctx, ctxCreateParams, flags, dev)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Device *device = d.device(dev);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pctx || (flags & ~unsigned(CU_CTX_FLAGS_MASK)))
        return CUDA_ERROR_INVALID_VALUE;
    if (ctxCreateParams && (ctxCreateParams->numExecAffinityParams || ctxCreateParams->cigParams))
        return CUDA_ERROR_NOT_SUPPORTED;
    Context *context = make_context(*device, flags, false);
    current_stack().push_back(context);
    *pctx = reinterpret_cast<CUcontext>(context);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuCtxDestroy", cuCtxDestroy_v2, 4000, (CUcontext ctx), (ctx)) {
    Driver &d = driver();
    Lock lock(d.mutex);
    Context *context;
    if (CUresult bad = known(ctx, context))
        return bad;
    if (context->is_primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    wait_for_context(lock, *context);
    if (!context->alive)  // another thread was first
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    end_context(lock, *context);
    if (current_context() == context)
        current_stack().pop_back();
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuCtxPushCurrent", cuCtxPushCurrent_v2, 4000, (CUcontext ctx), (ctx)) {
    Lock lock(driver().mutex);
    return make_current(ctx, false);
}

DRIVER_CALL("cuCtxPopCurrent", cuCtxPopCurrent_v2, 4000, (CUcontext * pctx), (pctx)) {
    if (current_stack().empty())
        return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx)
        *pctx = reinterpret_cast<CUcontext>(current_stack().back());
    current_stack().pop_back();
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuCtxSetCurrent", cuCtxSetCurrent, 4000, (CUcontext ctx), (ctx)) {
    Lock lock(driver().mutex);
    if (ctx)
        return make_current(ctx, true);
    if (!current_stack().empty())
        current_stack().pop_back();
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuCtxGetCurrent", cuCtxGetCurrent, 4000, (CUcontext * pctx), (pctx)) {
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    *pctx = reinterpret_cast<CUcontext>(current_context());
    return CUDA_SUCCESS;
}

static CUresult device_of(CUcontext handle, CUdevice *device) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = named_or_current(handle, context))
        return bad;
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    *device = context->device->ordinal;
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext handle) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = named_or_current(handle, context))
        return bad;
    if (CUresult bad = check_no_capture_in(*context))
        return bad;
    wait_for_context(lock, *context);
    synchronised();
    return context->fault;
}

DRIVER_CALL("cuCtxGetDevice", cuCtxGetDevice, 2000, (CUdevice * device), (device)) { return device_of(nullptr, device); }

DRIVER_CALL("cuCtxGetDevice", cuCtxGetDevice_v2, 13000, (CUdevice * device, CUcontext ctx), (device, ctx)) {
    return device_of(ctx, device);
}

DRIVER_CALL("cuCtxSynchronize", cuCtxSynchronize, 2000, (void), ()) { return synchronize(nullptr); }

DRIVER_CALL("cuCtxSynchronize", cuCtxSynchronize_v2, 13000, (CUcontext ctx), (ctx)) { return synchronize(ctx); }

DRIVER_CALL("cuCtxGetId", cuCtxGetId, 12000, (CUcontext ctx, unsigned long long *ctxId), (ctx, ctxId)) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = named_or_current(ctx, context))
        return bad;
    if (!ctxId)
        return CUDA_ERROR_INVALID_VALUE;
    *ctxId = context->id;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuCtxGetFlags", cuCtxGetFlags, 7000, (unsigned int *flags), (flags)) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    if (!flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuCtxGetApiVersion", cuCtxGetApiVersion, 3020, (CUcontext ctx, unsigned int *version), (ctx, version)) {
    Lock lock(driver().mutex);
    Context *context;
    if (named_or_current(ctx, context))  // also one that was destroyed
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuCtxGetStreamPriorityRange", cuCtxGetStreamPriorityRange, 5050,
            (int *leastPriority, int *greatestPriority), (leastPriority, greatestPriority)) {
    Lock lock(driver().mutex);
    Context *context;
    if (CUresult bad = usable_context(context))
        return bad;
    if (leastPriority)
        *leastPriority = least_priority;
    if (greatestPriority)
        *greatestPriority = greatest_priority;
    return CUDA_SUCCESS;
}

}  // namespace sim
