// SPDX-License-Identifier: Apache-2.0
// Access between devices. All simulated devices can reach each other.
#include "driver.h"

namespace sim {

namespace {

CUresult peer_of(CUcontext handle, Context *&current, Context *&peer) {
    if (CUresult bad = usable_context(current))
        return bad;
    peer = reinterpret_cast<Context *>(handle);
    if (!driver().contexts.count(peer) || !peer->alive)
        return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

}  // namespace

DRIVER_CALL("cuDeviceCanAccessPeer", cuDeviceCanAccessPeer, 4000,
            (int *canAccessPeer, CUdevice dev, CUdevice peerDev), (canAccessPeer, dev, peerDev)) {
    Driver &d = driver();
    if (!d.device(dev) || !d.device(peerDev))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!canAccessPeer)
        return CUDA_ERROR_INVALID_VALUE;
    *canAccessPeer = dev != peerDev;
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDeviceGetP2PAttribute", cuDeviceGetP2PAttribute, 8000,
            (int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice),
            (value, attrib, srcDevice, dstDevice)) {
    Driver &d = driver();
    if (!d.device(srcDevice) || !d.device(dstDevice))
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value || srcDevice == dstDevice)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attrib) {
    case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        *value = 0;
        return CUDA_SUCCESS;
    case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        *value = 1;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

DRIVER_CALL("cuCtxEnablePeerAccess", cuCtxEnablePeerAccess, 4000, (CUcontext peerContext, unsigned int Flags),
            (peerContext, Flags)) {
    Lock lock(driver().mutex);
    Context *current, *peer;
    if (CUresult bad = peer_of(peerContext, current, peer))
        return bad;
    if (Flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (peer->device == current->device)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    return current->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

DRIVER_CALL("cuCtxDisablePeerAccess", cuCtxDisablePeerAccess, 4000, (CUcontext peerContext), (peerContext)) {
    Lock lock(driver().mutex);
    Context *current, *peer;
    if (CUresult bad = peer_of(peerContext, current, peer))
        return bad;
    return current->peers.erase(peer) ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

}  // namespace sim
