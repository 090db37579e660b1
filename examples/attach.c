/* attach ENTRY [RUN-DIR]: lists the tensors of an entry and adds up their bytes: in place where they are in host memory,
 * copied piece by piece where they are on a device.
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

static uint64_t sum_of(const unsigned char* bytes, uint64_t nbytes) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < nbytes; ++i) sum += bytes[i];
  return sum;
}

/* A program that computes on the device would use tensor->data there. */
static wcache_reason sum_on_device(const wcache_entry* entry, const wcache_tensor* tensor, uint64_t* sum) {
  static unsigned char piece[1 << 20];
  *sum = 0;
  for (uint64_t done = 0; done < tensor->nbytes;) {
    const uint64_t left = tensor->nbytes - done;
    const uint64_t nbytes = left < sizeof piece ? left : sizeof piece;
    const wcache_reason reason = wcache_read(entry, tensor->number, done, piece, nbytes);
    if (reason != WCACHE_OK) return reason;
    *sum += sum_of(piece, nbytes);
    done += nbytes;
  }
  return WCACHE_OK;
}

static wcache_reason show(const wcache_entry* entry, const wcache_tensor* tensor) {
  uint64_t sum = 0;
  printf("%.*s %s %" PRIu64 " %s ", (int)tensor->name_nbytes, tensor->name, tensor->dtype, tensor->nbytes,
         tensor->file);
  if (tensor->device_type == WCACHE_DEVICE_TYPE_CUDA) {
    const wcache_reason reason = sum_on_device(entry, tensor, &sum);
    if (reason != WCACHE_OK) return reason;
    printf("%" PRIu64 " cuda:%" PRId32 "\n", sum, tensor->device);
  } else {
    printf("%" PRIu64 " host\n", sum_of(tensor->data, tensor->nbytes));
  }
  return WCACHE_OK;
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
    if (show(entry, &tensor) != WCACHE_OK) return failed();
  }
  wcache_close(entry);
  return 0;
}
