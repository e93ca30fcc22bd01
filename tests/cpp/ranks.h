// Several ranks in one process, each a thread: an engine for tests, whose messages arrive late and out of the order of ranks.
#ifndef TESSERA_TESTS_RANKS_H_
#define TESSERA_TESTS_RANKS_H_

#include <compare>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/parallel.h"

namespace tessera::test {

class ThreadRanks {
 public:
  explicit ThreadRanks(int32_t size) : size_(size) {}

  struct Result {
    tessera_status status;
    std::string message;
  };

  // call(communicator) on every rank, each in a thread of its own.
  template <class Call>
  std::vector<Result> run(tessera_parallel parallel, const Call& call, int64_t exchange_bytes = 0) {
    std::vector<Result> results(static_cast<size_t>(size_));
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        Host host = {this, rank};
        const tessera_communicator c = {rank, size_, parallel, exchange_bytes, &host, exchange, wait};
        const tessera_status status = call(c);
        results[static_cast<size_t>(rank)] = {status, status == TESSERA_OK ? "" : tessera_last_error()};
      });
    }
    for (std::thread& t : threads) t.join();
    unread_ += messages_.size();
    messages_.clear();
    return results;
  }

  size_t unread() const { return unread_; }         // messages that nobody has received
  int64_t exchanges() const { return exchanges_; }  // of rank 0

 private:
  struct Host {
    ThreadRanks* ranks;
    int32_t rank;
  };
  // The first, second, ... from one rank to another. Sends and receives meet in the order in which they were started.
  struct Message {
    int32_t from, to;
    int64_t number;
    auto operator<=>(const Message&) const = default;
  };
  using Edge = std::pair<int32_t, int32_t>;

  struct Receive {
    Message message;
    char* to;
    size_t bytes;
  };
  using Request = std::vector<Receive>;

  static int32_t exchange(void* host, const void* send, const tessera_rows* sent, void* receive,
                          const tessera_rows* received, int64_t row_bytes, void** request) {
    const Host& h = *static_cast<Host*>(host);
    ThreadRanks& ranks = *h.ranks;
    auto* const pending = new Request;
    const std::lock_guard lock(ranks.mutex_);
    for (int32_t r = ranks.size_ - 1; r >= 0; --r) {
      const char* const from = static_cast<const char*>(send) + sent[r].first * row_bytes;
      if (sent[r].count != 0) {
        const Message message = {h.rank, r, ranks.sent_[{h.rank, r}]++};
        ranks.messages_[message].assign(from, static_cast<size_t>(sent[r].count * row_bytes));
      }
      if (received[r].count == 0) continue;
      pending->push_back({{r, h.rank, ranks.received_[{r, h.rank}]++},
                          static_cast<char*>(receive) + received[r].first * row_bytes,
                          static_cast<size_t>(received[r].count * row_bytes)});
    }
    ranks.arrived_.notify_all();
    *request = pending;
    return 0;
  }

  static int32_t wait(void* host, void* request) {
    const Host& h = *static_cast<Host*>(host);
    ThreadRanks& ranks = *h.ranks;
    auto* const pending = static_cast<Request*>(request);
    bool fits = true;
    for (const Receive& one : *pending) {
      std::unique_lock lock(ranks.mutex_);
      ranks.arrived_.wait(lock, [&] { return ranks.messages_.count(one.message) != 0; });
      const auto found = ranks.messages_.find(one.message);
      fits = fits && found->second.size() == one.bytes;
      if (fits) std::memcpy(one.to, found->second.data(), one.bytes);
      ranks.messages_.erase(found);
    }
    if (h.rank == 0) ++ranks.exchanges_;
    delete pending;
    return fits ? 0 : 1;
  }

  const int32_t size_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Message, std::string> messages_;
  std::map<Edge, int64_t> sent_, received_;
  size_t unread_ = 0;
  int64_t exchanges_ = 0;
};

}  // namespace tessera::test

#endif  // TESSERA_TESTS_RANKS_H_
