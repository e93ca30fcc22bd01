#include "dist/ranks.h"

#include <cstring>

#include "dist/hash.h"

namespace tessera::dist {
namespace {

const Status kEngineFailed = {TESSERA_INTERNAL, "the exchange between the ranks failed"};

std::string who(int64_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

void Pending::wait() {
  const tessera_communicator* const c = std::exchange(c_, nullptr);
  if (c != nullptr && c->wait(c->host, request_) != 0) throw StatusError(kEngineFailed);
}

Status check_communicator(const tessera_communicator* c) {
  if (c == nullptr) return invalid("communicator is null");
  if (c->size < 1 || c->rank < 0 || c->rank >= c->size) {
    return invalid("communicator.rank is " + std::to_string(c->rank) + " of " + std::to_string(c->size));
  }
  if (c->parallel != TESSERA_QUERY_PARALLEL && c->parallel != TESSERA_CONTEXT_PARALLEL) {
    return invalid("communicator.parallel is neither query-parallel nor context-parallel");
  }
  if (c->exchange_bytes < 0) {
    return invalid("communicator.exchange_bytes is " + std::to_string(c->exchange_bytes) + "; expected at least 0");
  }
  if (c->exchange == nullptr || c->wait == nullptr) return invalid("communicator.exchange or wait is null");
  return {};
}

Pending Ranks::start(const void* send, const std::vector<tessera_rows>& sent, void* receive,
                     const std::vector<tessera_rows>& received, int64_t row_bytes) const {
  void* request = nullptr;
  if (c_.exchange(c_.host, send, sent.data(), receive, received.data(), row_bytes, &request) != 0) {
    throw StatusError(kEngineFailed);
  }
  return {c_, request};
}

uint64_t Word::hash_of(uint64_t before, uint64_t value) { return hash(value, before); }

Agreement::Agreement(const Ranks& ranks, const Word& own)
    : all_(static_cast<size_t>(ranks.size())), pages_(own.pages.all) {
  Message& mine = all_[static_cast<size_t>(ranks.rank())];
  mine.code = own.status.code;
  mine.plan = own.plan;
  mine.pages = own.pages.own;
  const std::string& text = own.status.ok() ? own.call : own.status.text;
  mine.text[text.copy(mine.text, sizeof mine.text - 1)] = '\0';
  pending_ = ranks.gather(
      all_.data(),
      [](int64_t r) {
        return tessera_rows{r, 1};
      },
      sizeof(Message));
}

Status Agreement::wait() {
  pending_.wait();
  uint64_t pages = 0;
  for (const Message& m : all_) {
    if (m.code != TESSERA_OK) {
      const std::string name = all_.size() > 1 ? who(&m - all_.data()) + ": " : "";
      return {static_cast<tessera_status>(m.code), name + m.text};
    }
  }
  for (size_t r = 0; r < all_.size(); ++r) {
    if (Status s = difference(static_cast<int64_t>(r)); !s.ok()) return s;
    pages += all_[r].pages;
  }
  if (pages == pages_) return {};
  return invalid("page_table: expected each page that holds keys in the table of exactly one rank, -1 in the others'");
}

Status Agreement::difference(int64_t rank) const {
  const Message& m = all_[static_cast<size_t>(rank)];
  const Message& first = all_[0];
  if (std::strcmp(m.text, first.text) != 0) {
    return invalid(who(rank) + " is called with " + m.text + ", rank 0 with " + first.text);
  }
  if (m.plan != first.plan) {
    return invalid(who(rank) + " has other lengths, positions or lists than rank 0, of the same shapes");
  }
  return {};
}

}  // namespace tessera::dist
