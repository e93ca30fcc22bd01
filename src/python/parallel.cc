// Calls that several ranks make together. The engine is Python's: an object of tessera.distributed that has the attributes
// rank and size and the methods exchange and wait.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <exception>

#include "python/call.h"
#include "python/module.h"

namespace tessera::python {
namespace {

struct Host {
  nb::object ranks;
  bool exchanged = false;
  std::exception_ptr error;  // of the engine

  // Runs what the engine may fail at; returns what C expects.
  template <class F>
  int32_t engine(const F& f) {
    const nb::gil_scoped_acquire locked;
    try {
      f();
      return 0;
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
      return 1;
    }
  }
};

// The messages of an exchange as a list of (rank, address, bytes).
nb::list messages(const void* rows, const tessera_rows* parts, int64_t size, int64_t row_bytes) {
  nb::list all;
  for (int64_t rank = 0; rank < size; ++rank) {
    if (parts[rank].count == 0) continue;
    const auto address = reinterpret_cast<uintptr_t>(rows) + static_cast<uintptr_t>(parts[rank].first * row_bytes);
    all.append(nb::make_tuple(rank, address, parts[rank].count * row_bytes));
  }
  return all;
}

int32_t exchange(void* host, const void* send, const tessera_rows* sent, void* receive, const tessera_rows* received,
                 int64_t row_bytes, void** request) {
  auto* const h = static_cast<Host*>(host);
  h->exchanged = true;
  return h->engine([&] {
    const auto size = nb::cast<int64_t>(h->ranks.attr("size"));
    const nb::object started =
        h->ranks.attr("exchange")(messages(send, sent, size, row_bytes), messages(receive, received, size, row_bytes));
    *request = nb::object(started).release().ptr();
  });
}

int32_t wait(void* host, void* request) {
  auto* const h = static_cast<Host*>(host);
  return h->engine([&] { h->ranks.attr("wait")(nb::steal(static_cast<PyObject*>(request))); });
}

tessera_status status_of(const nb::python_error& error) {
  if (error.matches(PyExc_NotImplementedError)) return TESSERA_NOT_IMPLEMENTED;  // is a RuntimeError, too
  if (error.matches(PyExc_ValueError)) return TESSERA_INVALID_ARGUMENT;
  if (error.matches(PyExc_TypeError)) return TESSERA_TYPE_ERROR;
  if (error.matches(PyExc_MemoryError)) return TESSERA_OUT_OF_MEMORY;
  return TESSERA_INTERNAL;
}

// Tells the others of a failure that their calls are waiting to hear of, and raises what is raised on all ranks.
[[noreturn]] void fail_together(const tessera_communicator& ranks, const std::string& op, nb::python_error& error) {
  const tessera_status status = status_of(error);
  std::string text = nb::str(error.value()).c_str();
  if (text.rfind(op + ": ", 0) == 0) text.erase(0, op.size() + 2);
  tessera_status common;
  {
    nb::gil_scoped_release unlocked;
    common = tessera_parallel_failed(&ranks, status, text.c_str());
  }
  raise_status(common, op.c_str());
}

// op(*args, **kwargs) by all ranks.
nb::object parallel(nb::handle context_parallel, nb::handle ranks, nb::handle exchange_bytes, nb::handle op,
                    nb::handle args, nb::handle kwargs) {
  const std::string name = nb::cast<std::string>(op.attr("__name__"));
  Host host{nb::borrow(ranks), false, {}};
  const tessera_communicator c = {nb::cast<int32_t>(ranks.attr("rank")),
                                  nb::cast<int32_t>(ranks.attr("size")),
                                  nb::cast<bool>(context_parallel) ? TESSERA_CONTEXT_PARALLEL : TESSERA_QUERY_PARALLEL,
                                  nb::cast<int64_t>(exchange_bytes),
                                  &host,
                                  exchange,
                                  wait};
  struct Shared {
    explicit Shared(const tessera_communicator* now) : before(communicator()) { communicator() = now; }
    ~Shared() { communicator() = before; }
    const tessera_communicator* before;
  };
  try {
    try {
      const Shared shared(&c);
      return op(*nb::borrow<nb::args>(args), **nb::borrow<nb::kwargs>(kwargs));
    } catch (nb::python_error& error) {
      if (host.exchanged || !error.matches(PyExc_Exception)) throw;
      fail_together(c, name, error);
    }
  } catch (nb::python_error&) {
    if (host.error != nullptr) std::rethrow_exception(host.error);
    throw;
  }
}

// (table, number of pages)
nb::object own_pages(nb::handle seqused_k, nb::handle max_pages, nb::handle page_size, nb::handle rank, nb::handle size,
                     nb::handle ownership, nb::handle owners) {
  Call call("own_pages", nb::str("native"));
  tessera_own_pages_args args{};
  args.seqused_k = call.input("seqused_k", seqused_k, kI32);
  args.owners = call.optional_input("owners", owners, kI32);
  args.page_size = call.positive("page_size", page_size);
  args.rank = call.integer("rank", rank);
  args.size = call.integer("size", size);
  args.ownership = static_cast<tessera_ownership>(int32_of({call.op(), "ownership"}, ownership));
  const Shape shape = {args.seqused_k.shape[0], call.positive("max_pages", max_pages)};
  const Call::Output table = call.new_output(shape, "int32");
  args.page_table = table.view;
  int64_t pages = 0;
  call.run([&] { return tessera_own_pages(&args, &pages); });
  return nb::make_tuple(call.result(table), pages);
}

std::vector<int64_t> partition(const std::vector<int64_t>& work, int64_t parts) {
  std::vector<int64_t> bounds(static_cast<size_t>(parts) + 1);
  const tessera_status status = tessera_partition(work.data(), static_cast<int64_t>(work.size()), parts, bounds.data());
  if (status != TESSERA_OK) raise_status(status, "partition");
  return bounds;
}

}  // namespace

void bind_parallel(nb::module_& m) {
  bind(m, "parallel", parallel);
  bind(m, "own_pages", own_pages);
  m.def("partition", partition);
}

}  // namespace tessera::python
