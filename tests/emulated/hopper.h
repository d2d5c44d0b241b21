// What the kernels of sm_90a need beside cuda.h: barriers in shared memory, copies and products that are done at once. Of
// clusters, what blocks write into each other's shared memory. A product reads its operands where their descriptors say.
#include <map>

#define __CUDA_ARCH_FEAT_SM90_ALL
#define __constant__
inline int cudaGetDevice(int* device) { return *device = 0; }
template <typename Kernel>
int cudaOccupancyMaxActiveClusters(int* count, Kernel, const cudaLaunchConfig_t*) { return *count = 2, cudaSuccess; }
struct CUtensorMap { const float* data; int64_t sizes[5]; int box[5]; bool rounds; int64_t plane; };

namespace emulated {
struct Barrier { int count, left, bytes, phase; };
struct Named { int waiting, turn; };
inline std::map<uint32_t, Barrier> barriers;
inline std::map<int, Named> named;
inline uint32_t operands[32][2][32][4];   // of products, by warp, turn and lane

inline void settle(Barrier& b) { if (b.left == 0 && b.bytes == 0) b.left = b.count, b.phase ^= 1; }
inline char* at(uint32_t address) { return reinterpret_cast<char*>(blocks[0].memory) + address; }
inline uint32_t word(uint32_t address) { uint32_t w; memcpy(&w, at(address), 4); return w; }
}  // namespace emulated

inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(static_cast<const char*>(p) - emulated::at(0)); }
inline void barrier_init(uint32_t bar, int count) { emulated::barriers[bar] = {count, count, 0, 0}, emulated::named.clear(); }   // before any other
inline void barrier_arrive(uint32_t bar) { auto& b = emulated::barriers.at(bar); --b.left, emulated::settle(b); }
inline void barrier_expect(uint32_t bar, int bytes) { auto& b = emulated::barriers.at(bar); b.bytes += bytes, --b.left, emulated::settle(b); }
inline void barrier_wait(uint32_t bar, int phase) { while (emulated::barriers.at(bar).phase == phase) emulated::yield(); }
inline void arrived(uint32_t bar, int bytes) { auto& b = emulated::barriers.at(bar); b.bytes -= bytes, emulated::settle(b); }
inline void bulk_load(uint32_t to, const void* from, int bytes, uint32_t bar) {
    if ((to | reinterpret_cast<uintptr_t>(from) | bytes) % 16) abort();
    memcpy(emulated::at(to), from, bytes), arrived(bar, bytes);
}
inline void barrier_arrive_remote(uint32_t) { abort(); }
inline void bulk_multicast(uint32_t, const void*, int, uint32_t) { abort(); }
inline unsigned int cluster_rank() { return emulated::rank; }
inline uint32_t remote(uint32_t address, unsigned int rank) {
    constexpr uint32_t size = sizeof(emulated::Block);
    return address % size + rank * size;
}
inline void cluster_sync() {
    static int waiting, turn;
    const int own = turn;
    if (++waiting == static_cast<int>(emulated::fibers.size())) waiting = 0, ++turn;
    while (turn == own) emulated::yield();
}
inline float shared_read(uint32_t from) { return __uint_as_float(emulated::word(from)); }
inline void shared_write(uint32_t to, float v) { memcpy(emulated::at(to), &v, 4); }
inline void tensor_load(uint32_t to, const CUtensorMap& map, int x, int y, int z, int channel, int sample, uint32_t bar) {
    const int first[5] = {x, y, z, channel, sample};
    int bytes = 0;
    for (int n = 0, count = map.box[0] * map.box[1] * map.box[2] * map.box[3]; n < count; ++n, bytes += 4) {
        int64_t offset = 0, step = 1, rest = n;
        bool in = true;
        for (int axis = 0; axis < 5; ++axis) {
            const int64_t i = first[axis] + rest % map.box[axis];
            in = in && i >= 0 && i < map.sizes[axis], offset += i * step, step *= map.sizes[axis], rest /= map.box[axis];
        }
        uint32_t v = in ? __float_as_uint(map.data[offset]) : 0u;
        if (map.rounds && isfinite(__uint_as_float(v))) v = (v + 0xfffu + (v >> 13 & 1u)) & 0xffffe000u;   // to TF32, ties to even
        memcpy(emulated::at(to + bytes), &v, 4);
    }
    arrived(bar, bytes);
}
inline void tensor_load(uint32_t to, const CUtensorMap& map, int x, int line, int quad, uint32_t bar) {   // of a grid of slots
    int bytes = 0;
    for (int q = 0; q < map.box[2]; ++q)
        for (int l = 0; l < map.box[1]; ++l)
            for (int i = 0; i < map.box[0]; ++i, bytes += 4) {
                const int64_t at[3] = {4 * x + i, line + l, quad + q};
                bool in = true;
                for (int axis = 0; axis < 3; ++axis) in = in && at[axis] >= 0 && at[axis] < map.sizes[axis];
                shared_write(to + bytes, in ? map.data[at[2] * map.plane + at[1] * map.sizes[0] + at[0]] : 0.0f);
            }
    arrived(bar, bytes);
}
inline void named_arrive(int id, int threads) {
    auto& b = emulated::named[id];
    if (++b.waiting == threads) b.waiting = 0, ++b.turn;
}
inline void named_sync(int id, int threads) {
    const int own = emulated::named[id].turn;
    named_arrive(id, threads);
    while (emulated::named[id].turn == own) emulated::yield();
}
inline void send(uint32_t to, float v, uint32_t bar) { memcpy(emulated::at(to), &v, 4), arrived(bar, 4); }
template <int OFFSET>
uint32_t shared_load(uint32_t from) { return emulated::word(from + OFFSET); }
// What is not aligned is a trap on the device; here it is NaN.
inline uint32_t vector_word(uint32_t from, int i, uint32_t bytes) { return from % bytes == 0 ? emulated::word(from + i * 4) : ~0u; }
template <int OFFSET>
uint2 shared_load2(uint32_t from) { return {vector_word(from + OFFSET, 0, 8), vector_word(from + OFFSET, 1, 8)}; }
template <int OFFSET>
uint4 shared_load4(uint32_t from) {
    return {vector_word(from + OFFSET, 0, 16), vector_word(from + OFFSET, 1, 16), vector_word(from + OFFSET, 2, 16), vector_word(from + OFFSET, 3, 16)};
}
inline uint32_t to_tf32(float v) { return __float_as_uint(v) + (isfinite(v) ? 0x1000u : 0u); }

// Copies arrive as late as they may.
struct Copy { uint32_t to; const float* from; bool in; };
inline std::vector<std::vector<Copy>> groups[512];
inline void copy_element(uint32_t to, const void* from, bool in) {
    auto& own = groups[threadIdx.x];
    if (own.empty()) own.emplace_back();
    own.back().push_back({to, static_cast<const float*>(from), in});
}
inline void commit_elements() {
    auto& own = groups[threadIdx.x];
    if (own.empty()) own.emplace_back();
    own.emplace_back();
}
template <int PENDING>
void await_elements() {
    auto& own = groups[threadIdx.x];
    while (static_cast<int>(own.size()) - 1 > PENDING) {
        for (const Copy& copy : own.front()) shared_write(copy.to, copy.in ? *copy.from : 0.0f);
        own.erase(own.begin());
    }
}

// Element k of row n of an operand without swizzle: rows in eights, 16 bytes of each side by side.
inline float element(uint64_t descriptor, int n, int k) {
    const uint32_t begin = descriptor & 0x3fff, leading = descriptor >> 16 & 0x3fff, stride = descriptor >> 32 & 0x3fff;
    return tf32(emulated::word((begin + k / 4 * leading + n / 8 * stride + n % 8) * 16 + k % 4 * 4));
}
template <int SUMS, typename A>
void multiply_rows(float (&d)[SUMS], A value, uint64_t b, int accumulate) {
    const int c = threadIdx.x % 4;
    for (int i = 0; i < SUMS; ++i) {
        double sum = 0.0;
        for (int k = 0; k < 8; ++k) sum += double(value(i / 2 % 2, k)) * element(b, i / 4 * 8 + 2 * c + i % 2, k);
        d[i] = (accumulate ? d[i] : 0.0f) + static_cast<float>(sum);
    }
}
template <int SUMS>
void multiply(float (&d)[SUMS], uint64_t a, uint64_t b, int accumulate) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
    __syncwarp();   // lanes of a warp begin and end together
    multiply_rows(d, [&](int lower, int k) { return element(a, row + 8 * lower, k); }, b, accumulate);
    __syncwarp();
}
// The same of halves: two in a word.
template <int SUMS>
void multiply_octets(float (&d)[SUMS], uint64_t a, uint64_t b, int accumulate) {
    const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    const auto half = [](uint64_t descriptor, int n, int k) {
        const uint32_t begin = descriptor & 0x3fff, leading = descriptor >> 16 & 0x3fff, stride = descriptor >> 32 & 0x3fff;
        return from_half(emulated::word((begin + k / 8 * leading + n / 8 * stride + n % 8) * 16 + k % 8 / 2 * 4) >> k % 2 * 16);
    };
    __syncwarp();
    for (int i = 0; i < SUMS; ++i) {
        double sum = 0.0;
        for (int k = 0; k < 16; ++k) sum += double(half(a, row + 8 * (i / 2 % 2), k)) * half(b, i / 4 * 8 + 2 * c + i % 2, k);
        d[i] = (accumulate ? d[i] : 0.0f) + static_cast<float>(sum);
    }
    __syncwarp();
}
template <int SUMS>
void multiply(float (&d)[SUMS], const uint32_t (&a)[4], uint64_t b, int accumulate) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = emulated::warps[warp].turn % 2;
    memcpy(emulated::operands[warp][turn][lane], a, 16);
    __syncwarp();
    multiply_rows(d, [&](int lower, int k) { return tf32(emulated::operands[warp][turn][lane / 4 * 4 + k % 4][lower + k / 4 * 2]); }, b, accumulate);
    __syncwarp();
}

// Products of halves, with a swizzle of 128 bytes: columns in eights, 64 terms of a column in 128 bytes.
template <int COLUMNS>
struct Product {
    static void run(float (&d)[COLUMNS / 2], const uint32_t (&a)[4], uint64_t b, int accumulate) {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, turn = emulated::warps[warp].turn % 2, c = lane % 4;
        memcpy(emulated::operands[warp][turn][lane], a, 16);
        __syncwarp();
        const uint32_t begin = (b & 0x3fff) * 16, stride = (b >> 32 & 0x3fff) * 16;
        for (int i = 0; i < COLUMNS / 2; ++i) {
            double sum = 0.0;
            for (int k = 0; k < 16; ++k) {
                const int n = i / 4 * 8 + 2 * c + i % 2;
                const uint32_t linear = begin + n / 8 * stride + n % 8 * 128 + k * 2, at = linear ^ (linear >> 7 & 7) << 4;
                const uint32_t left = emulated::operands[warp][turn][lane / 4 * 4 + k % 8 / 2][i / 2 % 2 + k / 8 * 2] >> k % 2 * 16;
                sum += double(from_half(left)) * from_half(emulated::word(at & ~3u) >> (at & 2) * 8);
            }
            d[i] = (accumulate ? d[i] : 0.0f) + static_cast<float>(sum);
        }
        __syncwarp();
    }
};
template <int COUNT>
void product_begin(float (&)[COUNT]) {}
template <int COUNT>
void product_end(float (&)[COUNT]) {}
inline void product_commit() {}
inline bool warpgroup_any(bool v) {
    static int found[2][4];   // by turn
    const int group = threadIdx.x / 128, turn = emulated::named[1 + group].turn % 2;
    found[turn][group] |= v;
    named_sync(1 + group, 128);
    const bool any = found[turn][group];
    named_sync(1 + group, 128);
    found[turn][group] = 0;
    return any;
}
