#include "core/checkpoint/source_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <optional>
#include <span>
#include <utility>

#include "core/checkpoint/disguise.h"
#include "core/checkpoint/text.h"
#include "core/format.h"

namespace wcache {
namespace {

/// A file that was listed a moment ago cannot be opened.
Error cannot_open(const std::string& name, Error error) {
  error.message = in_quotes(name) + " cannot be read: " + error.message;
  if (error.reason == Reason::denied) error.hint = "let the user that runs wcache read it";
  if (error.reason == Reason::not_found) error.reason = Reason::io;  // it went away while we looked
  return error;
}

}  // namespace

Result<OpenedSource> open_source(std::string name, const std::filesystem::path& path, FileKind kind) {
  // O_NONBLOCK: what became a FIFO since it was listed must not block; it means nothing for a regular file.
  Result<Fd> fd = open_file(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY);
  if (!fd) return fail(cannot_open(name, std::move(fd.error())));
  struct stat st {};
  if (fstat(fd->get(), &st) != 0) return fail(cannot_open(name, errno_error("fstat", errno)));
  if (!S_ISREG(st.st_mode)) return fail(Reason::io, in_quotes(name) + " is no regular file any more");
  OpenedSource source;
  source.file.name = std::move(name);
  source.file.path = path;
  source.file.identity = FileIdentity::of(st);
  source.file.kind = kind;
  source.fd = std::move(*fd);
  return source;
}

Status read_header(OpenedSource& source) {
  SourceFile& file = source.file;
  const int fd = source.fd.get();
  if (file.kind == FileKind::safetensors) {
    Result<std::vector<TensorInfo>> tensors = read_safetensors_header(fd, file.identity.nbytes, file.name);
    if (!tensors) return fail(std::move(tensors.error()));
    file.tensors = std::move(*tensors);
  } else if (file.kind == FileKind::gguf) {
    Result<GgufHeader> header = read_gguf_header(fd, file.identity.nbytes, file.name);
    if (!header) return fail(std::move(header.error()));
    file.tensors = std::move(header->tensors);
    source.architecture = std::move(header->architecture);
  } else if (file.kind == FileKind::opaque) {
    if (const std::optional<Disguise> disguise = disguise_of(fd, file.identity.nbytes))
      return fail(Reason::corrupt, printable(file.name) + " is " + std::string(disguise->what),
                  std::string(disguise->hint));
  }
  return {};
}

Result<std::string> read_text(const OpenedSource& source, std::uint64_t limit) {
  const std::string name = printable(source.file.name);
  if (source.file.identity.nbytes > limit)
    return fail(Reason::corrupt, name + ": more than " + std::to_string(limit) + " bytes");
  std::string text(static_cast<std::size_t>(source.file.identity.nbytes), '\0');
  if (Status status = read_exact(source.fd.get(), std::as_writable_bytes(std::span(text)), 0, name); !status)
    return fail(std::move(status.error()));
  return text;
}

}  // namespace wcache
