// Bandwidth probe: moves bytes and nothing else, in one launch. The first blocks copy one 16-byte vector a
// thread; the next read a long span each, four vectors in flight a thread; the last write. Of the shapes
// tried on an H200 (spans of 32 KB to 1 MB, two to eight vectors in flight, streaming hints) these were
// the fastest, so that a share of the probe's bandwidth is not flattered by a slow probe.

#include <cstdint>
#include <cuda_runtime.h>

constexpr int THREADS = 256;
constexpr int64_t COPY_VECTORS = THREADS;       // of a copying or writing block
constexpr int64_t SPAN_VECTORS = 256 * 1024 / 16;  // of a reading block
constexpr int64_t SHORT_READ = (192 << 20) / 16;   // up to here, reads should not push dirty lines out of L2

template <bool SHORT>
__device__ __forceinline__ uint4 stream_load(const uint4* address) {
    uint4 v;
    if constexpr (SHORT) {
        asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(address));
    } else {
        v = __ldg(address);
    }
    return v;
}

__device__ __forceinline__ uint32_t fold(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

__host__ __device__ constexpr int64_t blocks_for(int64_t vectors, int64_t per_block) {
    return (vectors + per_block - 1) / per_block;
}

template <bool SHORT>
__global__ void __launch_bounds__(THREADS)
fusegen_probe(const uint4* source, int64_t reads, uint4* sink, int64_t writes) {
    const int64_t both = reads < writes ? reads : writes;
    const int64_t copying = blocks_for(both, COPY_VECTORS), reading = blocks_for(reads - both, SPAN_VECTORS);
    int64_t block = blockIdx.x;
    if (block < copying) {
        const int64_t i = block * COPY_VECTORS + threadIdx.x;
        if (i < both) sink[i] = __ldg(source + i);
        return;
    }
    block -= copying;
    if (block >= reading) {
        const int64_t i = both + (block - reading) * COPY_VECTORS + threadIdx.x;
        if (i < writes) sink[i] = make_uint4(0, 0, 0, 0);
        return;
    }
    int64_t i = both + block * SPAN_VECTORS + threadIdx.x;
    const int64_t end = both + (block + 1) * SPAN_VECTORS < reads ? both + (block + 1) * SPAN_VECTORS : reads;
    uint32_t seen = 0;
    for (; i + 3 * THREADS < end; i += 4 * THREADS) {
        const uint4 a = stream_load<SHORT>(source + i), b = stream_load<SHORT>(source + i + THREADS);
        const uint4 c = stream_load<SHORT>(source + i + 2 * THREADS), d = stream_load<SHORT>(source + i + 3 * THREADS);
        seen |= fold(a) | fold(b) | fold(c) | fold(d);
    }
    for (; i < end; i += THREADS) seen |= fold(stream_load<SHORT>(source + i));
    // The source holds zeros, so this never stores; it keeps the loads from being removed.
    if (seen) sink[0] = make_uint4(seen, 0, 0, 0);
}

extern "C" int fusegen_probe_launch(const void* source, int64_t read_bytes, void* sink, int64_t write_bytes,
                                    void* stream) {
    const int64_t reads = read_bytes / 16, writes = write_bytes / 16, both = reads < writes ? reads : writes;
    const int64_t blocks = blocks_for(both, COPY_VECTORS) + blocks_for(reads - both, SPAN_VECTORS) +
                           blocks_for(writes - both, COPY_VECTORS);
    const auto* from = static_cast<const uint4*>(source);
    auto* to = static_cast<uint4*>(sink);
    const auto where = static_cast<cudaStream_t>(stream);
    if (reads <= SHORT_READ) {
        fusegen_probe<true><<<blocks, THREADS, 0, where>>>(from, reads, to, writes);
    } else {
        fusegen_probe<false><<<blocks, THREADS, 0, where>>>(from, reads, to, writes);
    }
    return cudaGetLastError();
}
