// What a processor with AMX does, for tests on one without: its instructions raise SIGILL there,
// and the handler does their work. After Intel's Software Developer's Manual, volume 2, for the
// instructions that roseinfer/native/amx*.h have; whatever else raises SIGILL ends the process.

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>

namespace {

struct Tile {
    std::uint8_t bytes[16][64];
};

struct State {
    bool configured;
    std::uint8_t rows[8];
    std::uint16_t row_bytes[8];
    Tile tiles[8];
};

thread_local State state;

// One instruction with a three-byte VEX prefix.
struct Instruction {
    const std::uint8_t *modrm;
    int prefix, opcode, reg, rm, other, length;
    bool in_memory;
    std::uint64_t base, index;
};

[[noreturn]] void refuse() {
    std::signal(SIGILL, SIG_DFL);
    std::raise(SIGILL);
    std::abort();
}

std::uint64_t general(const ucontext_t *context, int number) {
    static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
    return static_cast<std::uint64_t>(context->uc_mcontext.gregs[order[number]]);
}

// The address: base in `base`, index times scale in `index`.
void read_address(Instruction &in, const ucontext_t *context, bool x, bool b) {
    const std::uint8_t *at = in.modrm + 1;
    const int mode = *in.modrm >> 6, low = *in.modrm & 7;
    in.base = in.index = 0;
    bool absolute = false;
    if (low == 4) {
        const int scale = *at >> 6, index = (*at >> 3 & 7) | x << 3, base = *at & 7;
        if (index != 4) in.index = general(context, index) << scale;
        absolute = mode == 0 && base == 5;
        if (!absolute) in.base = general(context, base | b << 3);
        ++at;
    } else if (mode == 0 && low == 5) {
        refuse();  // relative to the instruction: not what a compiler makes of a local variable
    } else {
        in.base = general(context, low | b << 3);
    }
    if (mode == 1) {
        in.base += static_cast<std::int64_t>(static_cast<std::int8_t>(*at));
        at += 1;
    } else if (mode == 2 || absolute) {
        std::int32_t displacement;
        std::memcpy(&displacement, at, 4);
        in.base += static_cast<std::int64_t>(displacement);
        at += 4;
    }
    in.length = static_cast<int>(at - in.modrm);
}

Instruction decode(const std::uint8_t *at, const ucontext_t *context) {
    if (at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x84) != 0) refuse();  // 0F38, W0, L0
    Instruction in = {};
    in.prefix = at[2] & 3;  // none, 66, F3, F2
    in.other = ~(at[2] >> 3) & 15;
    in.opcode = at[3];
    in.modrm = at + 4;
    in.reg = *in.modrm >> 3 & 7;
    in.rm = *in.modrm & 7;
    in.in_memory = *in.modrm >> 6 != 3;
    if (in.in_memory)
        read_address(in, context, !(at[1] & 0x40), !(at[1] & 0x20));
    else
        in.length = 1;
    in.length += 4;
    return in;
}

void load_config(const std::uint8_t *from) {
    if (from[0] != 1) refuse();
    for (int i = 1; i < 16; ++i)
        if (from[i] != 0) refuse();
    std::memset(&state, 0, sizeof state);
    for (int i = 0; i < 16; ++i) {
        std::uint16_t bytes;
        std::memcpy(&bytes, from + 16 + 2 * i, 2);
        const std::uint8_t rows = from[48 + i];
        if (i >= 8 ? bytes || rows : bytes > 64 || rows > 16 || !bytes != !rows) refuse();
        if (i < 8) state.row_bytes[i] = bytes, state.rows[i] = rows;
    }
    state.configured = true;
}

// A row of memory to a row of the tile, or back; what is beyond them in the tile is zero.
void move(const Instruction &in, bool to_memory) {
    Tile &tile = state.tiles[in.reg];
    if (!to_memory) tile = {};
    for (int row = 0; row < state.rows[in.reg]; ++row) {
        auto *memory = reinterpret_cast<std::uint8_t *>(in.base + in.index * row);
        if (to_memory)
            std::memcpy(memory, tile.bytes[row], state.row_bytes[in.reg]);
        else
            std::memcpy(tile.bytes[row], memory, state.row_bytes[in.reg]);
    }
}

float widened(const Tile &tile, int row, int column) {
    std::uint16_t half;
    std::memcpy(&half, tile.bytes[row] + 2 * column, 2);
    const std::uint32_t bits = (half & 0x7F80) == 0 ? 0 : std::uint32_t{half} << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

void check_shapes(int sums, int left, int right) {
    if (state.rows[sums] != state.rows[left] || state.row_bytes[left] / 4 != state.rows[right] ||
        state.row_bytes[sums] != state.row_bytes[right])
        refuse();
}

// Sums += left times right, a pair of inputs at a time; the two sums of a pair meet at the end.
void multiply(int sums, int left, int right) {
    check_shapes(sums, left, right);
    const int depth = state.row_bytes[left] / 4, columns = state.row_bytes[sums] / 4;
    for (int row = 0; row < state.rows[sums]; ++row)
        for (int column = 0; column < columns; ++column) {
            float pair[2] = {};
            for (int k = 0; k < depth; ++k)
                for (int i = 0; i < 2; ++i)
                    pair[i] += widened(state.tiles[left], row, 2 * k + i) *
                               widened(state.tiles[right], k, 2 * column + i);
            float sum;
            std::uint8_t *at = state.tiles[sums].bytes[row] + 4 * column;
            std::memcpy(&sum, at, 4);
            sum += pair[0] + pair[1];
            std::memcpy(at, &sum, 4);
        }
}

// The same of signed bytes, four inputs at a time.
void multiply_bytes(int sums, int left, int right) {
    check_shapes(sums, left, right);
    for (int row = 0; row < state.rows[sums]; ++row)
        for (int column = 0; column < state.row_bytes[sums] / 4; ++column) {
            std::int32_t sum;
            std::uint8_t *at = state.tiles[sums].bytes[row] + 4 * column;
            std::memcpy(&sum, at, 4);
            for (int k = 0; k < state.row_bytes[left]; ++k)
                sum += static_cast<std::int8_t>(state.tiles[left].bytes[row][k]) *
                       static_cast<std::int8_t>(
                           state.tiles[right].bytes[k / 4][4 * column + k % 4]);
            std::memcpy(at, &sum, 4);
        }
}

void handle(int, siginfo_t *, void *raw) {
    enum { NONE, _66, F3, F2 };
    auto *context = static_cast<ucontext_t *>(raw);
    const auto *at = reinterpret_cast<const std::uint8_t *>(context->uc_mcontext.gregs[REG_RIP]);
    const Instruction in = decode(at, context);
    const bool configures = in.opcode == 0x49 && in.prefix == NONE && in.in_memory;
    if (!configures && !state.configured) refuse();
    if (configures)
        load_config(reinterpret_cast<const std::uint8_t *>(in.base + in.index));
    else if (in.opcode == 0x49 && in.prefix == NONE)
        std::memset(&state, 0, sizeof state);
    else if (in.opcode == 0x49 && in.prefix == F2 && !in.in_memory)
        state.tiles[in.reg] = {};
    else if (in.opcode == 0x4B && in.in_memory && in.prefix != NONE)  // 66: loads past the caches
        move(in, in.prefix == F3);
    else if (in.opcode == 0x5C && in.prefix == F3 && !in.in_memory)
        multiply(in.reg, in.rm, in.other);
    else if (in.opcode == 0x5E && in.prefix == F2 && !in.in_memory)
        multiply_bytes(in.reg, in.rm, in.other);
    else
        refuse();
    context->uc_mcontext.gregs[REG_RIP] += in.length;
}

}  // namespace

extern "C" {

struct sigaction before;

void install() {
    struct sigaction action = {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGILL, &action, &before);
}

void uninstall() { sigaction(SIGILL, &before, nullptr); }
}
