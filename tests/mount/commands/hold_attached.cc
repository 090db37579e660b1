// hold_attached SOCKET: attaches to a rank as an engine's client does, says "attached", and holds the connection until its
// standard input ends.
#include <unistd.h>

#include <cstdio>

#include "ipc/client.h"

int main(int argc, char** argv) {
  using namespace wcache;
  if (argc != 2) return 2;
  const Deadline deadline = deadline_in(std::chrono::seconds(20));
  Result<Client> client = Client::connect(argv[1], Purpose::client, argv[0], deadline);
  const Result<Attachment> attachment = client ? client->attach(deadline) : fail(client.error());
  if (!attachment) {
    std::fprintf(stderr, "%s\n", attachment.error().message.c_str());
    return 1;
  }
  std::printf("attached to %zu files\n", attachment->images.size());
  std::fflush(stdout);
  for (char byte = 0; read(STDIN_FILENO, &byte, 1) > 0;) {
  }
  return 0;
}
