// The ranks of a job, and the two things that they send each other: rows of bytes, and whether all is well.
#ifndef TESSERA_DIST_RANKS_H_
#define TESSERA_DIST_RANKS_H_

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "dist/partition.h"
#include "tessera/parallel.h"

namespace tessera::dist {

// An exchange that has been started. Its memory must stay until it has been waited for, at the latest by the destructor.
class Pending {
 public:
  Pending() = default;
  Pending(const tessera_communicator& c, void* request) : c_(&c), request_(request) {}
  Pending(Pending&& other) noexcept : c_(std::exchange(other.c_, nullptr)), request_(other.request_) {}
  Pending& operator=(Pending&& other) noexcept {
    std::swap(c_, other.c_);
    std::swap(request_, other.request_);
    return *this;
  }
  ~Pending() {
    if (c_ != nullptr) c_->wait(c_->host, request_);
  }

  void wait();

 private:
  const tessera_communicator* c_ = nullptr;
  void* request_ = nullptr;
};

Status check_communicator(const tessera_communicator* c);

class Ranks {
 public:
  explicit Ranks(const tessera_communicator& c) : c_(c) {}

  int64_t rank() const { return c_.rank; }
  int64_t size() const { return c_.size; }
  int64_t exchange_bytes() const { return c_.exchange_bytes == 0 ? int64_t{64} << 20 : c_.exchange_bytes; }
  bool by_queries() const { return c_.parallel == TESSERA_QUERY_PARALLEL; }
  const char* way() const { return by_queries() ? "query-parallel" : "context-parallel"; }

  // Rank r gets rows sent(r) of `send`, and rows received(r) of `receive` come from it. What is one's own stays where it is.
  template <class Sent, class Received>
  Pending exchange(const void* send, const Sent& sent, void* receive, const Received& received,
                   int64_t row_bytes) const {
    std::vector<tessera_rows> out, in;
    for (int64_t r = 0; r < size(); ++r) {
      out.push_back(r == rank() ? tessera_rows{0, 0} : sent(r));
      in.push_back(r == rank() ? tessera_rows{0, 0} : received(r));
    }
    return start(send, out, receive, in, row_bytes);
  }

  // Every rank's rows of an array that all of them have in full afterwards.
  template <class Part>
  Pending gather(void* rows, const Part& part, int64_t row_bytes) const {
    return exchange(
        rows, [&](int64_t) { return part(rank()); }, rows, part, row_bytes);
  }

 private:
  Pending start(const void* send, const std::vector<tessera_rows>& sent, void* receive,
                const std::vector<tessera_rows>& received, int64_t row_bytes) const;

  const tessera_communicator& c_;
};

// What each rank tells all others about a call, before it and after each piece of its work: that it failed and why, or
// what the call is. All ranks then come to the same conclusion: the failure of the lowest rank that has one.
struct Word {
  Status status;
  std::string call;   // shapes, dtypes and options that must agree
  uint64_t plan = 0;  // a hash of lengths and shares that must agree
  PageSums pages;

  void add(uint64_t value) { plan = hash_of(plan, value); }

 private:
  static uint64_t hash_of(uint64_t before, uint64_t value);
};

// What `f` returns, or what it throws as a Status: a failure has to reach the other ranks before it ends the call.
template <class F>
Status guarded(const F& f) {
  try {
    return f();
  } catch (const StatusError& e) {
    return e.status;
  } catch (const std::bad_alloc&) {
    return {TESSERA_OUT_OF_MEMORY, "out of memory"};
  } catch (const std::exception& e) {
    return {TESSERA_INTERNAL, e.what()};
  }
}

class Agreement {
 public:
  Agreement(const Ranks& ranks, const Word& own);
  Status wait();

 private:
  // Of a fixed size, since nothing has been agreed upon when it travels.
  struct Message {
    int32_t code;
    uint64_t plan, pages;
    char text[480];
  };
  Status difference(int64_t rank) const;

  std::vector<Message> all_;
  uint64_t pages_;
  Pending pending_;
};

}  // namespace tessera::dist

#endif  // TESSERA_DIST_RANKS_H_
