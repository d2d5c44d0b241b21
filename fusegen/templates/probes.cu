// Bandwidth probe: moves bytes and nothing else. Reads read_bytes and writes write_bytes, both multiples
// of 16, in 16-byte accesses with four in flight per thread; traffic bypasses L1 and is not kept in L2.

#include <cstdint>
#include <cuda_runtime.h>

__device__ __forceinline__ uint4 stream_load(const uint4* address) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
}

__device__ __forceinline__ uint32_t fold(uint4 v) { return v.x ^ v.y ^ v.z ^ v.w; }

__global__ void __launch_bounds__(512)
fusegen_probe(const uint4* source, int64_t reads, uint4* sink, int64_t writes) {
    const int64_t stride = int64_t(gridDim.x) * blockDim.x;
    const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const int64_t both = reads < writes ? reads : writes;

    int64_t i = first;
    for (; i + 3 * stride < both; i += 4 * stride) {
        const uint4 a = stream_load(source + i), b = stream_load(source + i + stride);
        const uint4 c = stream_load(source + i + 2 * stride), d = stream_load(source + i + 3 * stride);
        __stcs(sink + i, a);
        __stcs(sink + i + stride, b);
        __stcs(sink + i + 2 * stride, c);
        __stcs(sink + i + 3 * stride, d);
    }
    for (; i < both; i += stride) __stcs(sink + i, stream_load(source + i));

    uint32_t seen = 0;
    for (; i + 3 * stride < reads; i += 4 * stride) {
        const uint4 a = stream_load(source + i), b = stream_load(source + i + stride);
        const uint4 c = stream_load(source + i + 2 * stride), d = stream_load(source + i + 3 * stride);
        seen |= fold(a) | fold(b) | fold(c) | fold(d);
    }
    for (; i < reads; i += stride) seen |= fold(stream_load(source + i));

    for (; i < writes; i += stride) __stcs(sink + i, make_uint4(0, 0, 0, 0));

    // The buffers hold zeros, so this never stores; it keeps the loads from being removed.
    if (seen) sink[0] = make_uint4(seen, 0, 0, 0);
}

extern "C" int fusegen_probe_launch(const void* source, int64_t read_bytes, void* sink, int64_t write_bytes,
                                    int blocks, void* stream) {
    fusegen_probe<<<blocks, 512, 0, static_cast<cudaStream_t>(stream)>>>(
        static_cast<const uint4*>(source), read_bytes / 16, static_cast<uint4*>(sink), write_bytes / 16);
    return cudaGetLastError();
}
