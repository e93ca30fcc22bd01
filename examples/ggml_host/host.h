// A host in the manner of ggml: a graph of nodes in order, threads that live as long as the pool and that all run every
// node, each its part `ith` of `nth`, with a barrier after each node, and one work buffer that is sized before. Tensors
// have up to four axes, the fastest first, and strides in bytes. It knows nothing of tessera.
#ifndef EXAMPLES_GGML_HOST_HOST_H_
#define EXAMPLES_GGML_HOST_HOST_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace host {

enum class Type { kF32, kF16, kI32 };
inline size_t size_of(Type type) { return type == Type::kF16 ? 2 : 4; }

struct Tensor {
  Type type;
  int64_t ne[4];  // sizes
  size_t nb[4];   // strides in bytes
  char* data;
};

// Memory taken once, before anything runs.
class Arena {
 public:
  explicit Arena(size_t bytes) : memory_(bytes + kAlignment) {}

  char* take(size_t bytes) {
    const auto at = reinterpret_cast<uintptr_t>(memory_.data()) + used_;
    used_ += (kAlignment - at % kAlignment) % kAlignment;
    char* const taken = memory_.data() + used_;
    used_ += bytes;
    return used_ <= memory_.size() ? taken : nullptr;
  }
  Tensor tensor(Type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1, int64_t ne3 = 1) {
    Tensor t = {type, {ne0, ne1, ne2, ne3}, {size_of(type)}, nullptr};
    for (int i = 1; i < 4; ++i) t.nb[i] = t.nb[i - 1] * static_cast<size_t>(t.ne[i - 1]);
    t.data = take(t.nb[3] * static_cast<size_t>(ne3));
    return t;
  }

 private:
  static constexpr size_t kAlignment = 64;
  std::vector<char> memory_;
  size_t used_ = 0;
};

struct Params {
  int ith, nth;
  char* work;  // the graph's, shared by its threads
};

struct Node {
  virtual ~Node() = default;
  virtual size_t work_size(int /*nth*/) { return 0; }
  virtual bool compute(const Params& params) = 0;  // false: the graph ends here
};
using Graph = std::vector<Node*>;

// What the largest node wants; nodes run one after the other.
inline size_t plan(const Graph& graph, int nth) {
  size_t bytes = 0;
  for (Node* node : graph) bytes = std::max(bytes, node->work_size(nth));
  return bytes;
}

// The thread that calls compute() is thread 0.
class Pool {
 public:
  explicit Pool(int nth) : nth_(nth) {
    for (int i = 1; i < nth; ++i) threads_.emplace_back([this, i] { wait_for_graphs(i); });
  }
  ~Pool() {
    graph_ = nullptr;
    ++started_;
    started_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  bool compute(const Graph& graph, char* work) {
    graph_ = &graph;
    work_ = work;
    failed_ = false;
    ++started_;
    started_.notify_all();
    run_nodes(0);
    return !failed_;
  }

 private:
  void wait_for_graphs(int ith) {
    for (uint32_t seen = 0;; ++seen) {
      started_.wait(seen);
      if (graph_ == nullptr) return;
      run_nodes(ith);
    }
  }
  void run_nodes(int ith) {
    for (Node* node : *graph_) {
      if (!node->compute({ith, nth_, work_})) failed_ = true;
      barrier();
      if (stop_) return;
    }
  }
  // The last to arrive says for all whether the graph goes on, since the others may already be in the next node when a slow
  // thread looks.
  void barrier() {
    const uint32_t round = round_;
    if (++arrived_ == nth_) {
      arrived_ = 0;
      stop_ = failed_;
      ++round_;
      round_.notify_all();
    } else {
      round_.wait(round);
    }
  }

  const int nth_;
  std::vector<std::thread> threads_;
  std::atomic<uint32_t> started_{0};  // graphs so far; the last one is the end
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> round_{0};
  std::atomic<bool> failed_{false};
  bool stop_ = false;
  const Graph* graph_ = nullptr;
  char* work_ = nullptr;
};

}  // namespace host

#endif  // EXAMPLES_GGML_HOST_HOST_H_
