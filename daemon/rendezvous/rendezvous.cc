#include "daemon/rendezvous/rendezvous.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

#include "daemon/rendezvous/address.h"
#include "daemon/rendezvous/loop.h"

namespace wcache {

Result<Rendezvous> Rendezvous::start(RendezvousOptions options, Handler handler) {
  if (options.token.empty())
    return fail(Reason::invalid, "a group of several nodes needs a rendezvous token",
                "set WCACHE_RENDEZVOUS_TOKEN or --rendezvous-token-file", "rendezvous-token-file");
  if (options.nnodes < 2 || options.node_rank >= options.nnodes)
    return fail(
        Reason::invalid,
        "node rank " + std::to_string(options.node_rank) + " of " + std::to_string(options.nnodes) + " nodes",
        "node ranks run from 0 to nnodes - 1", "node-rank");
  Fd wake = Fd::adopt(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return fail_errno("an eventfd", errno);
  Fd listener;
  if (options.node_rank == 0) {
    Result<Fd> fd = rendezvous::listen_at(options.master_addr, options.port);
    if (!fd) return tl::unexpected(fd.error());
    listener = std::move(*fd);
  }
  return Rendezvous(
      std::make_unique<Loop>(std::move(options), std::move(handler), std::move(wake), std::move(listener)));
}

Rendezvous::Rendezvous(std::unique_ptr<Loop> loop) : loop_(std::move(loop)) {}
Rendezvous::Rendezvous(Rendezvous&&) noexcept = default;
Rendezvous& Rendezvous::operator=(Rendezvous&&) noexcept = default;
Rendezvous::~Rendezvous() = default;

void Rendezvous::contribute(Key part) {
  loop_->post(Loop::Contribute{std::move(part)});
}
void Rendezvous::ready() {
  loop_->post(Loop::LocalReady{});
}
void Rendezvous::fail_group(Error error) {
  loop_->post(Loop::LocalFailed{std::move(error)});
}

}  // namespace wcache
