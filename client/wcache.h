#ifndef WCACHE_H
#define WCACHE_H

/* libwcache: the weights of an entry that a wcached on this node serves, mapped into the calling process:
 * from host memory or, for an entry on a CUDA device, from the device's.
 *
 * C11 and C++. No function throws or ends the process. Every function may be called from any thread at any
 * time, but for wcache_close: nothing of an entry may be used during or after the call that lets its last
 * hold go. docs/client-library.md describes the library, with an example. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define WCACHE_API __attribute__((visibility("default")))
#else
#define WCACHE_API
#endif

/* Why a call failed. The same reasons as everywhere in wcache; numbers are never reused. */
typedef enum wcache_reason {
  WCACHE_OK = 0,
  WCACHE_INVALID = 1,      /* an argument */
  WCACHE_NOT_RUNNING = 2,  /* no daemon answers */
  WCACHE_NOT_FOUND = 3,    /* no such entry, tensor or name */
  WCACHE_NOT_READY = 4,    /* still filling; try again, or set wait_ms */
  WCACHE_MISMATCH = 5,     /* another fingerprint or role than asked for */
  WCACHE_STALE = 6,        /* the source changed since it was cached */
  WCACHE_EVICTED = 7,      /* dropped on request */
  WCACHE_BUSY = 8,         /* held by somebody */
  WCACHE_OVER_BUDGET = 9,  /* a limit is too small */
  WCACHE_DENIED = 10,      /* permission */
  WCACHE_UNSUPPORTED = 11, /* this entry or machine cannot be served */
  WCACHE_CORRUPT = 12,     /* bytes are not what they claim to be */
  WCACHE_IO = 13,          /* the operating system refused */
  WCACHE_TIMEOUT = 14,     /* a deadline passed */
  WCACHE_VERSION = 15,     /* the daemon speaks another protocol */
  WCACHE_INTERNAL = 16     /* a bug, or no memory left */
} wcache_reason;

/* An attached entry. It starts with one hold. */
typedef struct wcache_entry wcache_entry;

typedef struct wcache_options {
  size_t size;      /* sizeof(wcache_options); WCACHE_OPTIONS_INIT sets it */
  const char* role; /* "target", "draft0"; NULL: whichever the entry is of */
  int32_t rank;     /* attach to this rank alone; -1: to every rank that this node has of the entry, or, where
                       each rank holds all of it on a device of its own, to the lowest that serves and
                       whose device the process may use */
  uint32_t wait_ms; /* how long to wait for an entry that is not there or still fills; 0: not at all */
} wcache_options;

#define WCACHE_OPTIONS_INIT \
  { sizeof(wcache_options), NULL, -1, 0 }

/* Strings live as long as the entry. Of several ranks attached to, the last three are of the lowest. */
typedef struct wcache_info {
  const char* role;
  const char* name;
  const char* fingerprint; /* 32 hex digits */
  const char* layout;
  const char* source;   /* the checkpoint it was made of */
  uint64_t nbytes;      /* of all files of the ranks attached to */
  uint32_t ranks;       /* how many are attached to */
  int32_t survives;     /* 1: what is mapped outlives every daemon; 0: it breaks when one dies (cuda-ipc) */
  const char* tier;     /* "host", "cuda" */
  const char* ipc_kind; /* "file", "cuda-vmm", "cuda-ipc" */
  const char* device_uuid; /* "GPU-...", "MIG-..."; "HOST-<rank>" in host memory */
} wcache_info;

/* Where a tensor is, in DLPack's codes. */
#define WCACHE_DEVICE_TYPE_CPU 1
#define WCACHE_DEVICE_TYPE_CUDA 2

#define WCACHE_DEVICE_HOST (-1)
#define WCACHE_DEVICE_NOT_ASKED (-2) /* of wcache_tensor_describe */

/* Pointers live as long as the entry. Shapes are those of the checkpoint, outermost first.
 *
 * `data` and `base` are addresses on the device that `device_type` and `device` name: of a CUDA tensor only
 * CUDA can read them, in any context of the device. `base` is the start of what is mapped around the tensor:
 * its file in host memory, its slab on a device; the same for every tensor of it, for as long as the process
 * has it mapped, so that a framework needs to be told of base_nbytes at base once. */
typedef struct wcache_tensor {
  const char* name; /* name_nbytes long, NOT ended by a NUL */
  size_t name_nbytes;
  size_t number;         /* below wcache_tensor_count */
  const char* dtype;     /* the format's own spelling: "BF16", "F8_E4M3"; "q4_1" for GGUF */
  const uint64_t* shape; /* ndim numbers; NULL for none */
  size_t ndim;
  uint64_t nbytes;
  const void* data; /* aligned as in the file, in a slab to 256 bytes; NULL for an empty tensor */
  const void* base; /* NULL for an empty tensor */
  uint64_t base_nbytes;
  int32_t device_type; /* WCACHE_DEVICE_TYPE_CPU, WCACHE_DEVICE_TYPE_CUDA */
  int32_t device;      /* CUDA's number for it in this process; WCACHE_DEVICE_HOST */
  int32_t read_only; /* 1: mapped for reading alone: in host memory a write is a fault, of a device the driver
                        has accepted the mapping as such; 0: nothing stops a write, and it would spoil every
                        process's tensor */
  uint32_t rank;
  const char* file;     /* relative to the entry's directory */
  uint64_t offset;      /* of the first byte in the file */
  uint32_t slab;        /* of the rank's device memory; in host memory the number of the file */
  uint64_t slab_offset; /* of the first byte in the slab; in host memory the same as offset */
  char digest[33];      /* of the bytes, hex; docs/formats.md says how */
} wcache_tensor;

/* The version of the library, "MAJOR.MINOR.PATCH". */
WCACHE_API const char* wcache_version(void);

/* Finds an entry, attaches to its daemons and keeps them from evicting it. `entry` is
 *   a path in the mounted tree, of an entry or of anything in it;
 *   a fingerprint, or the first 8 digits or more of one, if no other begins so;
 *   a name as in by-name/;
 *   the directory of a model (or its single weight file), if its fingerprint is remembered: no weights are
 * read for it. `run_dir`: where the daemons of this node meet; NULL: WCACHE_RUN_DIR, else the user's own as
 * for the programs. `options` may be NULL. *out is set on success only; wcache_close lets it go. The time it
 * takes does not depend on the number of tensors. A daemon that does not answer for 10 seconds is
 * WCACHE_TIMEOUT. Where a daemon has died, wcachefs is attached to, if it keeps the memory;
 * WCACHE_NOT_RUNNING if not.
 *
 * For a whole fingerprint, or a path in a mounted tree that has one, each daemon of the entry gets one
 * message and nobody else any. Otherwise, or where not all of them serve, every socket of the node is asked
 * what there is. No device is touched; but where several ranks each hold all of the entry on a device of
 * their own, and no rank is named, the CUDA driver is loaded to see which of the devices this process may
 * use. */
WCACHE_API wcache_reason wcache_open(const char* entry, const char* run_dir, const wcache_options* options,
                                     wcache_entry** out);

/* One more hold: as many wcache_close are needed. */
WCACHE_API void wcache_hold(wcache_entry* entry);

/* Lets one hold go; with the last one the memory is unmapped and the daemons are free to evict. NULL is
 * ignored. The error of the calling thread stays as it is.
 *
 * A slab of device memory is unmapped once everything that the process has asked of its device is done: the
 * call waits for that, however long it takes (cuCtxSynchronize), and others go on meanwhile. Where the driver
 * does not let it wait, as while another thread captures a graph (which such a call may spoil), the slab
 * stays mapped, and the next call that maps another slab or lets the last use of one go tries again. */
WCACHE_API void wcache_close(wcache_entry* entry);

WCACHE_API wcache_reason wcache_entry_info(const wcache_entry* entry, wcache_info* out);

/* Of all ranks attached to. 0 for NULL. */
WCACHE_API size_t wcache_tensor_count(const wcache_entry* entry);

/* By number, below wcache_tensor_count: rank by rank, sorted by name (bytewise) in each. A slab is mapped
 * when the first of its tensors is asked for, once in a process and in the primary context of its device,
 * which is the one of the CUDA runtime. The first slab loads the CUDA driver (WCACHE_LIBCUDA, else
 * libcuda.so.1). Where the slab cannot be mapped:
 *   WCACHE_UNSUPPORTED  no driver; the device is not among CUDA_VISIBLE_DEVICES; a process made by fork(2)
 *                       after its parent had used CUDA; an entry of cuda-ipc in another PID namespace
 *   WCACHE_OVER_BUDGET  the device or the driver has no room
 *   WCACHE_NOT_RUNNING  the daemon of an entry of cuda-ipc has died
 *   WCACHE_IO           whatever else the driver says */
WCACHE_API wcache_reason wcache_tensor_at(const wcache_entry* entry, size_t number, wcache_tensor* out);

/* The same without asking a device for anything: of a tensor on one `data` and `base` are NULL, `base_nbytes`
 * and `read_only` 0, and `device` is WCACHE_DEVICE_NOT_ASKED. */
WCACHE_API wcache_reason wcache_tensor_describe(const wcache_entry* entry, size_t number, wcache_tensor* out);

/* The number of the tensor of that name, which may hold any byte, NUL too. No device is asked for anything.
 * WCACHE_INVALID where several ranks have different tensors of that name: open one rank, or iterate. *number
 * is set on success only. */
WCACHE_API wcache_reason wcache_tensor_number(const wcache_entry* entry, const char* name, size_t name_nbytes,
                                              size_t* number);

/* wcache_tensor_number and wcache_tensor_at in one; of the first the name ends with a NUL. */
WCACHE_API wcache_reason wcache_tensor_find(const wcache_entry* entry, const char* name, wcache_tensor* out);
WCACHE_API wcache_reason wcache_tensor_find_bytes(const wcache_entry* entry, const char* name,
                                                  size_t name_nbytes, wcache_tensor* out);

/* Copies bytes of a tensor, `offset` bytes from its start, into host memory, wherever it is. WCACHE_INVALID
 * for bytes beyond its end. From a device: on a stream of the call's own, by way of pinned memory of its own
 * (4 MiB at most). WCACHE_TIMEOUT: the device did not copy so much in 30 seconds; `out` is not written after
 * that. */
WCACHE_API wcache_reason wcache_read(const wcache_entry* entry, size_t number, uint64_t offset, void* out,
                                     uint64_t nbytes);

/* Turns the text of an ipc_handle attribute of kind cuda-vmm (getfattr -n user.wcache.ipc_handle FILE) into
 * what cuMemImportFromShareableHandle takes: a descriptor of the slab, which the caller closes, and its size.
 * The memory lives as long as the descriptor, or any mapping made of it. *fd and *nbytes (which may be NULL)
 * are set on success only. WCACHE_INVALID for a text that is no handle; WCACHE_NOT_RUNNING where nobody
 * answers. */
WCACHE_API wcache_reason wcache_redeem(const char* ipc_handle, int* fd, uint64_t* nbytes);

/* Which group serves the draft of an engine that runs `model` with vLLM's speculative config (a JSON object)
 * on `tensor_parallel_size` ranks: the object that `wcache route --json` prints, from the same code.
 * `run_dir` as in wcache_open. Reads configs, headers and at most once the draft's own bytes; with `no_read`
 * configs alone. *out is set on success only, and is given back with wcache_route_free. WCACHE_INVALID for an
 * object that the engine would refuse: the message names the key. */
WCACHE_API wcache_reason wcache_route(const char* model, const char* speculative_config,
                                      uint32_t tensor_parallel_size, const char* run_dir, int no_read,
                                      char** out);
WCACHE_API void wcache_route_free(char* text);

/* The last failure of the calling thread; WCACHE_OK and "" when nothing has failed. A success leaves it
 * alone. Texts live until the next failure of the thread: what was wrong and where, and what to do about it
 * (often ""). */
WCACHE_API wcache_reason wcache_last_reason(void);
WCACHE_API const char* wcache_last_message(void);
WCACHE_API const char* wcache_last_hint(void);

/* "not-running", "over-budget", ...; "ok"; "unknown" for a number that is none. */
WCACHE_API const char* wcache_reason_name(wcache_reason reason);

#ifdef __cplusplus
}
#endif

#endif
