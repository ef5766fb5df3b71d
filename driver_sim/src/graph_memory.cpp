// SPDX-License-Identifier: Apache-2.0
// Memory that graphs allocate and free.
#include "graph.h"
#include "pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace sim {

namespace {

std::size_t in_pages(std::size_t bytes) { return (bytes + page_size - 1) / page_size * page_size; }

std::size_t in_chunks(std::size_t bytes) { return (bytes + pool_chunk - 1) / pool_chunk * pool_chunk; }

bool in_use(const GraphMemory &memory) {
    auto armed = [](auto &block) { return block->armed; };
    return memory.in_flight.use_count() > 1 || std::any_of(memory.blocks.begin(), memory.blocks.end(), armed);
}

void return_memory(Device &device, std::size_t used, std::size_t reserved) {
    device.graph_used -= used;
    device.graph_reserved -= reserved;
    device.give_back(reserved);
}

void set_high(Device &device) {
    device.graph_used_high = std::max(device.graph_used_high, device.graph_used);
    device.graph_reserved_high = std::max(device.graph_reserved_high, device.graph_reserved);
}

}  // namespace

GraphMemory::~GraphMemory() {
    Driver &d = driver();
    for (auto &block : blocks) {
        d.plain_space.end(block->base, in_pages(block->bytes));
        d.graph_blocks.erase(block->base);
    }
    if (device) {
        device->graph_idle_used += used;
        device->graph_idle_reserved += reserved;
    }
}

GraphBlock *graph_block_at(Address address) {
    auto &blocks = driver().graph_blocks;
    auto it = blocks.upper_bound(address);
    if (it == blocks.begin())
        return nullptr;
    GraphBlock *block = std::prev(it)->second;
    return address < block->base + block->bytes ? block : nullptr;
}

static std::shared_ptr<GraphMemory> memory_of(Graph &graph, Device &device) {
    std::shared_ptr<GraphMemory> &memory = graph.memory;
    if (!memory) {
        memory = std::make_shared<GraphMemory>();
        memory->device = &device;
    }
    return memory;
}

// The allocation that a graph can free at an address: its own or another graph's, once.
static GraphBlock *block_to_free(Graph &graph, Address address) {
    GraphBlock *block = graph_block_at(address);
    for (auto &node : graph.nodes)
        if (block && node->block == block && node->type == CU_GRAPH_NODE_TYPE_MEM_FREE)
            return nullptr;
    return block && block->base == address ? block : nullptr;
}

static void free_in(Node &node, GraphBlock &block) {
    node.block = &block;
    if (block.memory.lock() != node.graph->memory)
        node.graph->borrowed.push_back(block.memory.lock());
}

CUresult capture_allocation(Stream &stream, std::size_t bytes, Address &address) {
    Driver &d = driver();
    Capture &capture = *stream.capture;
    if (capture.invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    address = 0;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (bytes > stream.context->device->total)
        return CUDA_ERROR_OUT_OF_MEMORY;
    Address base = d.plain_space.take(in_pages(bytes), page_size);
    if (!base)
        return CUDA_ERROR_OUT_OF_MEMORY;
    auto block = std::make_unique<GraphBlock>();
    block->base = address = base;
    block->bytes = bytes;
    block->device = stream.context->device;
    block->id = d.next_id++;
    std::shared_ptr<GraphMemory> memory = memory_of(*capture.graph, *block->device);
    d.graph_blocks[base] = block.get();
    capture_node(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC)->block = block.get();
    block->memory = memory;
    memory->blocks.push_back(std::move(block));
    return CUDA_SUCCESS;
}

// What this or another capture has allocated can be freed in it, once; anything else leaves the capture as it is.
CUresult capture_free(Stream &stream, Address address) {
    Capture &capture = *stream.capture;
    if (capture.invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (address == 0)
        return CUDA_SUCCESS;
    memory_of(*capture.graph, *stream.context->device);  // an attempt is enough to make it a graph with memory
    GraphBlock *block = block_to_free(*capture.graph, address);
    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    free_in(*capture_node(stream, CU_GRAPH_NODE_TYPE_MEM_FREE), *block);
    return CUDA_SUCCESS;
}

namespace {

std::shared_ptr<GraphMemory> disarm(Address address, GraphBlock *&block) {
    block = graph_block_at(address);
    if (!block || block->base != address || !block->armed)
        return nullptr;
    block->armed = false;
    return std::move(block->keeps);
}

CUresult count_in_order(Lock &lock, Stream &stream, std::shared_ptr<GraphMemory> memory, GraphBlock &block, int change) {
    Work work;
    work.kind = WorkKind::PoolFree;
    work.run = [memory = std::move(memory), &block, change] {
        block.there += change;
        return CUDA_SUCCESS;
    };
    return submit(lock, stream, std::move(work));
}

}  // namespace

// Outside a graph: frees what a launch has allocated.
CUresult free_graph_memory(Address address) {
    GraphBlock *block;
    std::shared_ptr<GraphMemory> memory = disarm(address, block);
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    --block->there;
    return CUDA_SUCCESS;
}

CUresult free_graph_memory(Lock &lock, Stream &stream, Address address) {
    GraphBlock *block;
    std::shared_ptr<GraphMemory> memory = disarm(address, block);
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    return count_in_order(lock, stream, std::move(memory), *block, -1);
}

CUresult allocate_graph_memory(Lock &lock, Stream &stream, GraphBlock &block) {
    block.armed = true;
    block.keeps = block.memory.lock();
    return count_in_order(lock, stream, block.keeps, block, 1);
}

bool has_memory(const GraphBlock &block) {
    std::shared_ptr<GraphMemory> memory = block.memory.lock();
    return memory && memory->reserved && block.there > 0;
}

CUresult prepare_memory(GraphMemory &memory) {
    if (memory.reserved)
        return CUDA_SUCCESS;
    // Small allocations share memory, a large one has its own.
    std::size_t all = 0, small = 0, large = 0;
    for (auto &block : memory.blocks) {
        all += block->bytes;
        if (block->bytes < pool_chunk)
            small += block->bytes;
        else
            large += in_chunks(block->bytes);
    }
    std::size_t used = in_chunks(all), reserved = in_chunks(small) + large;
    Device &device = *memory.device;
    std::size_t idle_used = std::min(device.graph_idle_used, used);
    std::size_t idle_reserved = std::min(device.graph_idle_reserved, reserved);
    if (reserved - idle_reserved > device.total - device.used)
        return CUDA_ERROR_OUT_OF_MEMORY;
    // Opened for good, also when a later one cannot be: the process may be out of mappings.
    for (auto &block : memory.blocks)
        if (mprotect(reinterpret_cast<void *>(block->base), in_pages(block->bytes), PROT_READ | PROT_WRITE) != 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
    device.used += reserved - idle_reserved;
    device.graph_idle_used -= idle_used;
    device.graph_idle_reserved -= idle_reserved;
    device.graph_used += used - idle_used;
    device.graph_reserved += reserved - idle_reserved;
    memory.used = used;
    memory.reserved = reserved;
    set_high(device);
    return CUDA_SUCCESS;
}

// Into the graph of a running capture, too: nothing on its streams comes behind the node.
DRIVER_CALL("cuGraphAddMemFreeNode", cuGraphAddMemFreeNode, 11040,
            (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies,
             CUdeviceptr dptr),
            (phGraphNode, hGraph, dependencies, numDependencies, dptr)) {
    Lock lock(driver().mutex);
    Graph *graph = graph_or_capture_of(hGraph);
    if (!graph || !phGraphNode || (numDependencies && !dependencies))
        return CUDA_ERROR_INVALID_VALUE;
    auto made = std::make_unique<Node>();
    for (std::size_t i = 0; i < numDependencies; ++i) {
        auto *before = reinterpret_cast<Node *>(dependencies[i]);
        auto is = [before](auto &each) { return each.get() == before; };
        if (std::none_of(graph->nodes.begin(), graph->nodes.end(), is))
            return CUDA_ERROR_INVALID_VALUE;
        if (std::find(made->behind.begin(), made->behind.end(), before) != made->behind.end())
            return CUDA_ERROR_INVALID_VALUE;
        made->behind.push_back(before);
    }
    GraphBlock *block = block_to_free(*graph, dptr);
    if (!block)
        return CUDA_ERROR_INVALID_VALUE;
    made->graph = graph;
    made->type = CU_GRAPH_NODE_TYPE_MEM_FREE;
    memory_of(*graph, *block->device);
    free_in(*made, *block);
    *phGraphNode = reinterpret_cast<CUgraphNode>(made.get());
    graph->nodes.push_back(std::move(made));
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDeviceGraphMemTrim", cuDeviceGraphMemTrim, 11040, (CUdevice device), (device)) {
    Lock lock(driver().mutex);
    Device *d = driver().device(device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    return_memory(*d, d->graph_idle_used, d->graph_idle_reserved);
    d->graph_idle_used = d->graph_idle_reserved = 0;
    // A graph that has nothing allocated at the moment takes memory again at its next launch.
    for (auto &entry : driver().graph_blocks) {
        std::shared_ptr<GraphMemory> memory = entry.second->memory.lock();
        if (!memory || memory->device != d || in_use(*memory))
            continue;
        return_memory(*d, memory->used, memory->reserved);
        memory->used = memory->reserved = 0;
    }
    return CUDA_SUCCESS;
}

// Partly: graphs that are instantiated at the same time share no memory.
DRIVER_CALL("cuDeviceGetGraphMemAttribute", cuDeviceGetGraphMemAttribute, 11040,
            (CUdevice device, CUgraphMem_attribute attr, void *value), (device, attr, value)) {
    Lock lock(driver().mutex);
    Device *d = driver().device(device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    std::uint64_t number;
    switch (attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
        number = d->graph_used;
        break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        number = d->graph_used_high;
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        number = d->graph_reserved;
        break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        number = d->graph_reserved_high;
        break;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(value, &number, sizeof number);
    return CUDA_SUCCESS;
}

DRIVER_CALL("cuDeviceSetGraphMemAttribute", cuDeviceSetGraphMemAttribute, 11040,
            (CUdevice device, CUgraphMem_attribute attr, void *value), (device, attr, value)) {
    Lock lock(driver().mutex);
    Device *d = driver().device(device);
    if (!d)
        return CUDA_ERROR_INVALID_DEVICE;
    std::uint64_t number = 1;
    if (value)
        std::memcpy(&number, value, sizeof number);
    if (number != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        d->graph_used_high = d->graph_used;
    else if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        d->graph_reserved_high = d->graph_reserved;
    else
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

}  // namespace sim
