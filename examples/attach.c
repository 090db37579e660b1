/* attach ENTRY [RUN-DIR]: lists the tensors of an entry and adds up their bytes, in place.
 *
 *     cc attach.c $(pkg-config --cflags --libs wcache) -o attach
 */
#include <inttypes.h>
#include <stdio.h>
#include <wcache.h>

static int failed(void) {
  fprintf(stderr, "%s: %s\n", wcache_reason_name(wcache_last_reason()), wcache_last_message());
  if (*wcache_last_hint() != '\0') fprintf(stderr, "%s\n", wcache_last_hint());
  return 1;
}

static uint64_t sum_of(const wcache_tensor* tensor) {
  const unsigned char* bytes = tensor->data;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < tensor->nbytes; ++i) sum += bytes[i];
  return sum;
}

int main(int argc, char** argv) {
  wcache_options options = WCACHE_OPTIONS_INIT;
  options.wait_ms = 10000;
  wcache_entry* entry = NULL;
  wcache_info info;
  if (argc < 2) {
    fprintf(stderr, "usage: attach ENTRY [RUN-DIR]\n");
    return 2;
  }
  if (wcache_open(argv[1], argc > 2 ? argv[2] : NULL, &options, &entry) != WCACHE_OK) return failed();
  if (wcache_entry_info(entry, &info) != WCACHE_OK) return failed();
  printf("%s %s %s\n", info.role, info.fingerprint, info.name);
  for (size_t i = 0; i < wcache_tensor_count(entry); ++i) {
    wcache_tensor tensor;
    if (wcache_tensor_at(entry, i, &tensor) != WCACHE_OK) return failed();
    printf("%.*s %s %" PRIu64 " %s %" PRIu64 "\n", (int)tensor.name_nbytes, tensor.name, tensor.dtype,
           tensor.nbytes, tensor.file, sum_of(&tensor));
  }
  wcache_close(entry);
  return 0;
}
