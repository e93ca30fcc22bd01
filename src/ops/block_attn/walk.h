// The blocks that the lists of a task hold: their union, ascending, key tile by key tile, and which lists take each.
#ifndef TESSERA_OPS_BLOCK_ATTN_WALK_H_
#define TESSERA_OPS_BLOCK_ATTN_WALK_H_

#include <string.h>

#include "ops/block_attn/task.h"

namespace tessera::block_attn {

// A key tile, the lists that take it, and those of them that begin a new chunk with it.
struct Visit {
  int64_t block;
  int64_t piece;
  uint64_t takes;
  uint64_t begins;
};

template <class Isa>
struct Walk {
  using Of = Task<Isa>;

  // Turns the tile's lists into one member mask per block.
  static void read_lists(const Of& task) {
    uint64_t* members = at<uint64_t>(task.scratch, task.plan.scratch.members);
    uint64_t* touched = at<uint64_t>(task.scratch, task.plan.scratch.touched);
    memset(touched, 0, static_cast<size_t>(used_words(task.r)) * sizeof(uint64_t));
    for (int64_t i = 0; i < task.lists; ++i) {
      const int32_t* ids = ids_of(task.p, task.r, task.head, task.first_list + i);
      for (int64_t w = 0; w < task.p.width; ++w) {
        const int64_t id = ids[w * task.p.ids_entry];
        if (id < 0 || id >= task.r.blocks) continue;
        const uint64_t bit = uint64_t{1} << (id % 64);
        if ((touched[id / 64] & bit) == 0) members[id] = 0;
        touched[id / 64] |= bit;
        members[id] |= uint64_t{1} << i;
      }
    }
  }

  // The key tiles of the union, ascending. chunk < 0: all of them; else those that are in that chunk of some list. A
  // list's chunks are counted in tiles, whether or not their keys exist.
  const Of& task;
  const uint64_t* members;
  const uint64_t* touched;
  const int64_t chunk;
  int64_t done[kTileLists] = {};  // key tiles of each list so far
  int64_t word = -1;
  uint64_t bits = 0;
  Visit now;

  Walk(const Of& of, int64_t a_chunk)
      : task(of),
        members(at<uint64_t>(of.scratch, of.plan.scratch.members)),
        touched(at<uint64_t>(of.scratch, of.plan.scratch.touched)),
        chunk(a_chunk),
        now{0, of.plan.tiles_per_block - 1, 0, 0} {}

  bool advance() {
    do {
      if (++now.piece == task.plan.tiles_per_block) {
        now.piece = 0;
        while (bits == 0) {
          if (++word == used_words(task.r)) return false;
          bits = touched[word];
        }
        now.block = word * 64 + __builtin_ctzll(bits);
        bits &= bits - 1;
      }
      count();
    } while (now.takes == 0);
    return true;
  }

 private:
  void count() {
    now.takes = now.begins = 0;
    for (uint64_t left = members[now.block]; left != 0; left &= left - 1) {
      int64_t& tiles = done[__builtin_ctzll(left)];
      const uint64_t bit = left & ~(left - 1);
      if (chunk < 0 || tiles / task.plan.chunk_tiles == chunk) now.takes |= bit;
      if (tiles > 0 && tiles % task.plan.chunk_tiles == 0) now.begins |= bit;
      ++tiles;
    }
  }
};

}  // namespace tessera::block_attn

#endif  // TESSERA_OPS_BLOCK_ATTN_WALK_H_
