// What the portable kernels need of CUDA, for a CPU: a block's threads are fibers, run in random order between the
// points where they wait for each other. Shared memory begins as NaN. Copies are done at once, products in double.
#include <ucontext.h>

#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__
#define __builtin_assume(condition)
#define __shared__ static   // one block runs at a time
#define threadIdx emulated::thread
#define blockIdx emulated::block

using std::isfinite;
using std::isinf;
using std::isnan;
using cudaError_t = int;
using cudaStream_t = void*;
constexpr int cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorNotSupported = 801, cudaErrorInvalidConfiguration = 9;
constexpr int cudaFuncAttributeMaxDynamicSharedMemorySize = 8, cudaFuncAttributePreferredSharedMemoryCarveout = 9, cudaSharedmemCarveoutMaxShared = 100, cudaSharedmemCarveoutMaxL1 = 0;
template <typename Kernel>
int cudaFuncSetAttribute(Kernel, int, int) { return cudaSuccess; }
inline int cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* p, int value, size_t bytes, cudaStream_t) { memset(p, value, bytes); return cudaSuccess; }
struct cudaLaunchAttribute {
    int id;
    struct {
        int programmaticStreamSerializationAllowed;
        struct { unsigned x, y, z; } clusterDim;
    } val;
};
constexpr int cudaLaunchAttributeClusterDimension = 4, cudaLaunchAttributeProgrammaticStreamSerialization = 6, cudaFuncAttributeNonPortableClusterSizeAllowed = 10;
template <typename Kernel>
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* count, Kernel, int, size_t) { return *count = 2, cudaSuccess; }

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
struct alignas(16) double2 { double x, y; };
inline double2 make_double2(double x, double y) { return {x, y}; }
struct alignas(8) uint2 { unsigned x, y; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
struct alignas(16) uint4 { unsigned x, y, z, w; };
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

namespace emulated {
constexpr int STACK = 256 << 10;
struct Fiber {
    jmp_buf at;
    bool started = false, done = false;
};
struct Warp {
    int waiting = 0, turn = 0;
    uint32_t in[32][6], out[32][4];
};

struct Block {
    int alive, waiting, turn;
    float4 memory[16384];   // dynamic shared memory
};

inline dim3 thread, block, block_size, grid_size;
inline std::vector<Fiber> fibers;
inline std::vector<Warp> warps;
inline std::function<void()> body;
inline jmp_buf scheduler;
inline int current, cluster_size, rank;   // of the thread that runs: in its cluster, whose blocks run together
inline unsigned state = 12345;
inline std::vector<Block> blocks;         // of the cluster
inline float4* memory;                    // of the block that runs

inline unsigned random() { return state ^= state << 13, state ^= state >> 17, state ^= state << 5; }
inline void yield() { if (_setjmp(fibers[current].at) == 0) _longjmp(scheduler, 1); }
inline void run_thread() {
    body();
    fibers[current].done = true, --blocks[rank].alive;
    _longjmp(scheduler, 1);
}

// What `all` makes of what the lanes of a warp bring.
template <int IN, int OUT, typename All>
void together(const uint32_t (&in)[IN], uint32_t (&out)[OUT], All all) {
    const int count = block_size.x * block_size.y, within = current % count, lane = within % 32;
    Warp& warp = warps[rank * ((count + 31) / 32) + within / 32];
    const int own = warp.turn;
    for (int i = 0; i < IN; ++i) warp.in[lane][i] = in[i];
    if (++warp.waiting == 32) all(warp), warp.waiting = 0, ++warp.turn;
    while (warp.turn == own) yield();
    for (int i = 0; i < OUT; ++i) out[i] = warp.out[lane][i];
}

inline void launch(dim3 grid, dim3 threads, int cluster, std::function<void()> kernel) {
    static std::vector<char*> stacks;
    const int own = threads.x * threads.y, count = own * cluster;
    while (static_cast<int>(stacks.size()) < count) stacks.push_back(static_cast<char*>(malloc(STACK)));
    body = kernel, block_size = threads, grid_size = grid;
    blocks.resize(cluster), cluster_size = cluster;
    for (unsigned b = 0; b < grid.x * grid.y; b += cluster) {
        fibers.assign(count, Fiber()), warps.assign((own + 31) / 32 * cluster, Warp());
        for (Block& one : blocks) one.alive = own, one.waiting = 0, memset(one.memory, 0xff, sizeof one.memory);
        auto alive = [] { int left = 0; for (Block& one : blocks) left += one.alive; return left; };
        while (alive()) {
            current = random() % count;
            for (int n = 0; n < count; ++n, current = (current + 1) % count) {
                Fiber& fiber = fibers[current];
                if (fiber.done || random() % 4 == 0) continue;
                rank = current / own, memory = blocks[rank].memory;
                block = dim3((b + rank) % grid.x, (b + rank) / grid.x);
                thread = dim3(current % own % threads.x, current % own / threads.x);
                const int fiber_of = current;
                if (_setjmp(scheduler) == 0) {
                    if (fiber.started) _longjmp(fiber.at, 1);
                    fiber.started = true;
                    static ucontext_t context;
                    getcontext(&context);
                    context.uc_stack.ss_sp = stacks[fiber_of], context.uc_stack.ss_size = STACK, context.uc_link = nullptr;
                    makecontext(&context, run_thread, 0);
                    setcontext(&context);
                }
            }
        }
    }
}
}  // namespace emulated

inline dim3 &blockDim = emulated::block_size, &gridDim = emulated::grid_size;
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute* attrs;
    int numAttrs;
};
template <typename Kernel, typename... Args>
int cudaLaunchKernelEx(const cudaLaunchConfig_t* config, Kernel kernel, const Args&... args) {
    const bool clusters = config->numAttrs && config->attrs[0].id == cudaLaunchAttributeClusterDimension;
    const int cluster = clusters ? static_cast<int>(config->attrs[0].val.clusterDim.x) : 1;
    if (config->numAttrs > clusters || config->dynamicSmemBytes > sizeof(emulated::Block::memory)) abort();
    if (config->gridDim.x % cluster || (cluster > 1 && config->gridDim.y > 1)) abort();
    emulated::launch(config->gridDim, config->blockDim, cluster, [&] { kernel(args...); });
    return cudaSuccess;
}

inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
inline float __int_as_float(int i) { return __uint_as_float(static_cast<unsigned>(i)); }
inline int __float_as_int(float f) { return static_cast<int>(__float_as_uint(f)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return uint64_t(a) * b >> 32; }
inline int __ffs(unsigned v) { return __builtin_ffs(static_cast<int>(v)); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(uint64_t v) { return __builtin_popcountll(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
inline double rsqrt(double v) { return 1.0 / sqrt(v); }
inline unsigned atomicMax(unsigned* p, unsigned v) { const unsigned old = *p; *p = old < v ? v : old; return old; }
inline unsigned atomicInc(unsigned* p, unsigned last) { const unsigned old = *p; *p = old >= last ? 0 : old + 1; return old; }
inline void __threadfence() {}
template <typename T>
T __ldg(const T* p) {
    if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) abort();
    return *p;
}
template <typename T>
T __ldcs(const T* p) { return __ldg(p); }
template <typename T>
T __ldcg(const T* p) { return __ldg(p); }
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) { using T = std::common_type_t<A, B>; return T(a) > T(b) ? T(a) : T(b); }
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) { using T = std::common_type_t<A, B>; return T(a) < T(b) ? T(a) : T(b); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = uint64_t(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return result;
}

inline size_t __cvta_generic_to_shared(const void* p) { return reinterpret_cast<size_t>(p); }

inline void __syncthreads() {
    emulated::Block& block = emulated::blocks[emulated::rank];
    const int own = block.turn;
    if (++block.waiting == block.alive) block.waiting = 0, ++block.turn;
    while (block.turn == own) emulated::yield();
}
inline bool __syncthreads_or(bool v) {
    static bool any;
    __syncthreads();
    any = false;
    __syncthreads();
    any = any || v;
    __syncthreads();
    return any;
}
inline void __syncwarp() {
    uint32_t none[1] = {};
    emulated::together(none, none, [](emulated::Warp&) {});
}
inline unsigned __ballot_sync(unsigned, bool v) {
    uint32_t in[1] = {v}, out[1];
    emulated::together(in, out, [](emulated::Warp& w) {
        uint32_t bits = 0;
        for (int i = 0; i < 32; ++i) bits |= w.in[i][0] << i;
        for (auto& o : w.out) o[0] = bits;
    });
    return out[0];
}
template <typename T>
unsigned __match_any_sync(unsigned, T v) {
    uint32_t in[2] = {static_cast<uint32_t>(v), static_cast<uint32_t>(static_cast<uint64_t>(v) >> 32)}, out[1];
    emulated::together(in, out, [](emulated::Warp& w) {
        for (int i = 0; i < 32; ++i) {
            w.out[i][0] = 0;
            for (int j = 0; j < 32; ++j) w.out[i][0] |= uint32_t(w.in[i][0] == w.in[j][0] && w.in[i][1] == w.in[j][1]) << j;
        }
    });
    return out[0];
}
inline bool __any_sync(unsigned mask, bool v) { return __ballot_sync(mask, v) != 0; }
inline unsigned __reduce_max_sync(unsigned, unsigned v) {
    uint32_t in[1] = {v}, out[1];
    emulated::together(in, out, [](emulated::Warp& w) {
        uint32_t most = 0;
        for (auto& i : w.in) most = max(most, i[0]);
        for (auto& o : w.out) o[0] = most;
    });
    return out[0];
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned v) { return ~__reduce_max_sync(mask, ~v); }
inline int __reduce_min_sync(unsigned, int v) {
    uint32_t in[1] = {static_cast<uint32_t>(v)}, out[1];
    emulated::together(in, out, [](emulated::Warp& w) {
        int32_t least = INT32_MAX;
        for (auto& i : w.in) least = min(least, static_cast<int32_t>(i[0]));
        for (auto& o : w.out) o[0] = static_cast<uint32_t>(least);
    });
    return out[0];
}
inline float __shfl_down_sync(unsigned, float v, int down, int width = 32) {
    uint32_t in[1] = {__float_as_uint(v)}, out[1];
    emulated::together(in, out, [down, width](emulated::Warp& w) {
        for (int i = 0; i < 32; ++i) w.out[i][0] = w.in[i % width + down < width ? i + down : i][0];
    });
    return __uint_as_float(out[0]);
}
inline float __shfl_up_sync(unsigned, float v, int up, int width = 32) {
    uint32_t in[1] = {__float_as_uint(v)}, out[1];
    emulated::together(in, out, [up, width](emulated::Warp& w) {
        for (int i = 0; i < 32; ++i) w.out[i][0] = w.in[i % width >= up ? i - up : i][0];
    });
    return __uint_as_float(out[0]);
}
inline float __shfl_sync(unsigned, float v, int from, int width = 32) {
    uint32_t in[2] = {__float_as_uint(v), static_cast<uint32_t>(from)}, out[1];
    emulated::together(in, out, [width](emulated::Warp& w) {
        for (int i = 0; i < 32; ++i) w.out[i][0] = w.in[i / width * width + static_cast<int>(w.in[i][1]) % width][0];
    });
    return __uint_as_float(out[0]);
}
inline uint32_t __shfl_sync(unsigned mask, uint32_t v, int from, int width = 32) { return __float_as_uint(__shfl_sync(mask, __uint_as_float(v), from, width)); }
inline int __shfl_sync(unsigned mask, int v, int from, int width = 32) { return __float_as_int(__shfl_sync(mask, __int_as_float(v), from, width)); }
inline float __shfl_xor_sync(unsigned, float v, int mask) {
    uint32_t in[1] = {__float_as_uint(v)}, out[1];
    emulated::together(in, out, [mask](emulated::Warp& w) {
        for (int i = 0; i < 32; ++i) w.out[i][0] = w.in[i ^ mask][0];
    });
    return __uint_as_float(out[0]);
}
inline uint32_t __shfl_xor_sync(unsigned mask, uint32_t v, int lanes) { return __float_as_uint(__shfl_xor_sync(mask, __uint_as_float(v), lanes)); }
template <typename From>
double shuffled(double v, From from) {
    uint32_t in[2], out[2];
    memcpy(in, &v, 8);
    emulated::together(in, out, [from](emulated::Warp& w) {
        for (int i = 0; i < 32; ++i) memcpy(w.out[i], w.in[from(i)], 8);
    });
    memcpy(&v, out, 8);
    return v;
}
inline double __shfl_xor_sync(unsigned, double v, int mask) { return shuffled(v, [mask](int i) { return i ^ mask; }); }
inline double __shfl_sync(unsigned, double v, int from) { return shuffled(v, [from](int) { return from; }); }
inline double __shfl_up_sync(unsigned, double v, int up) { return shuffled(v, [up](int i) { return i >= up ? i - up : i; }); }
inline double __shfl_down_sync(unsigned, double v, int down) { return shuffled(v, [down](int i) { return i + down < 32 ? i + down : i; }); }

// ---- In place of the helpers that are instructions ----------------------------------------------------------------
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fadd_ru(float a, float b) {
    const float sum = a + b;
    return double(sum) < double(a) + double(b) ? nextafterf(sum, INFINITY) : sum;
}
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
[[noreturn]] inline void __trap() { std::abort(); }
inline float nan_max(float a, float b) { return a != a ? a : b != b ? b : a > b ? a : b; }
inline float nan_min(float a, float b) { return a != a ? a : b != b ? b : a < b ? a : b; }
inline float quick_exp2(float a) { return exp2f(a); }
inline float quick_reciprocal(float a) { return 1.0f / a; }
template <typename T>
void advance(T*& p, int64_t bytes) { p = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(p) + bytes); }
template <int VEC>
void load_streaming(float* v, const float* p, int stride = 1) {
    if (reinterpret_cast<uintptr_t>(p) % (4 * VEC)) abort();
    for (int i = 0; i < VEC; ++i) v[i * stride] = p[i];
}
template <int VEC>
void load_once(float* v, const float* p, int stride = 1) {
    if (reinterpret_cast<uintptr_t>(p) % (4 * VEC)) abort();
    for (int i = 0; i < VEC; ++i) v[i * stride] = p[i];
}
template <bool SHORT, int VEC>
void load_stream(float (&v)[VEC], const float* p) { load_streaming<VEC>(v, p); }
inline void __stcg(float* p, float v) { *p = v; }
inline void __stcs(float* p, float v) { *p = v; }
template <int VEC>
void store_streaming(float* p, const float* v, int stride = 1) {
    if (reinterpret_cast<uintptr_t>(p) % (4 * VEC)) abort();
    for (int i = 0; i < VEC; ++i) p[i] = v[i * stride];
}
inline void store_where(bool in, float* to, float v) { if (in) *to = v; }
template <int WORDS>
void copy_words(float* to, const float* from, bool in = true) {
    if ((reinterpret_cast<uintptr_t>(to) | (in ? reinterpret_cast<uintptr_t>(from) : 0)) % (4 * WORDS)) abort();
    for (int i = 0; i < WORDS; ++i) to[i] = in ? from[i] : 0.0f;
}
template <int VEC>
void shared_copy(float* to, const float* from) { copy_words<VEC>(to, from); }
template <int BYTES>
void copy_async(float* to, const float* from) { copy_words<BYTES / 4>(to, from); }
inline void copy_async_wait() {}
inline void copies_issued() {}
template <int PENDING>
void copies_arrived() {}
inline void cluster_barrier() {}
inline float cluster_load(const float* p, int) { return *p; }
static bool on_hopper() { return false; }
inline void commit_copies() {}
template <int PENDING>
void wait_copies() {}

inline float tf32(uint32_t bits) { return __uint_as_float(bits & ~0x1fffu); }
inline float round_tf32(float v) { return isfinite(v) ? tf32(__float_as_uint(v) + 0x1000u) : v; }
inline float from_half(uint32_t bits) { const uint16_t own = bits; _Float16 h; memcpy(&h, &own, 2); return h; }
inline unsigned to_half(float v) { const _Float16 h = v; uint16_t bits; memcpy(&bits, &h, 2); return bits; }
inline unsigned nearest_halves(float low, float high) { return to_half(low) | to_half(high) << 16; }
inline unsigned split_halves(float v) { const unsigned high = to_half(v); return high | to_half(v - from_half(high)) << 16; }

// value_a(warp, row, k) and value_b(warp, k, column) read the fragments.
template <int DEPTH, typename A, typename B>
void multiply_fragments(float (&d)[4], const float4& a, uint32_t b0, uint32_t b1, A value_a, B value_b) {
    const uint32_t in[6] = {__float_as_uint(a.x), __float_as_uint(a.y), __float_as_uint(a.z), __float_as_uint(a.w), b0, b1};
    uint32_t out[4];
    emulated::together(in, out, [&](emulated::Warp& w) {
        for (int lane = 0; lane < 32; ++lane)
            for (int e = 0; e < 4; ++e) {
                double sum = 0.0;
                for (int k = 0; k < DEPTH; ++k) sum += double(value_a(w, lane / 4 + e / 2 * 8, k)) * value_b(w, k, lane % 4 * 2 + e % 2);
                w.out[lane][e] = __float_as_uint(static_cast<float>(sum));
            }
    });
    for (int e = 0; e < 4; ++e) d[e] += __uint_as_float(out[e]);
}
inline void multiply_add(float (&d)[4], const float4& a, float b0, float b1) {
    multiply_fragments<8>(d, a, __float_as_uint(b0), __float_as_uint(b1),
        [](emulated::Warp& w, int row, int k) { return tf32(w.in[row % 8 * 4 + k % 4][row / 8 + k / 4 * 2]); },
        [](emulated::Warp& w, int k, int column) { return tf32(w.in[column * 4 + k % 4][4 + k / 4]); });
}
inline void multiply_add_halves(float (&d)[4], const float4& a, const unsigned (&b)[2]) {
    multiply_fragments<16>(d, a, b[0], b[1],
        [](emulated::Warp& w, int row, int k) { return from_half(w.in[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2] >> k % 2 * 16); },
        [](emulated::Warp& w, int k, int column) { return from_half(w.in[column * 4 + k % 8 / 2][4 + k / 8] >> k % 2 * 16); });
}

static int multiprocessors() {
    return 2;
}
inline void multiply_halves(float (&d)[4], const float4& a, const unsigned (&b)[2]) { d[0] = d[1] = d[2] = d[3] = 0.0f, multiply_add_halves(d, a, b); }
inline void split_pair(float a, float b, unsigned& high, unsigned& low) {
    const unsigned x = split_halves(a), y = split_halves(b);
    high = (x & 0xffff) | y << 16, low = x >> 16 | (y & 0xffff0000u);
}
