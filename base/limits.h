/* SPDX-License-Identifier: Apache-2.0 */
/* Maxima that several rooms use, with the reason where a number has one. Anything that grows with input is checked
 * against one of these, or against a limit of its own room, at the boundary where it comes in. */
#pragma once

#define PTC_DEVICE_NAME_BYTES    96   /* as many as NVML writes */
#define PTC_NAME_MAX             63   /* job and node names: a DNS label, fits etcd keys and paths */
#define PTC_TENSOR_NAME_MAX      1023 /* longest seen in practice is ~200 */
#define PTC_FIELD_NAME_MAX       63
#define PTC_MAX_DIMS             8          /* PyTorch models stay below 6 */
#define PTC_MAX_TENSORS          (1u << 20) /* a 10^4-expert MoE has ~10^5 */
#define PTC_MAX_FIELDS           16
#define PTC_MAX_RULES            4096
#define PTC_MAX_PERMUTED         4096 /* units that a rule puts in another order, such as a layer's experts */
#define PTC_MAX_PADDING          (INT64_C(1) << 32) /* elements of a padded buffer; times ranks it fits 64 bits */
#define PTC_MAX_RANKS            (1u << 17)
#define PTC_MAX_NODES            16384
#define PTC_MAX_COPIES           (1u << 18) /* copies of one snapshot on other nodes: two for each rank */
#define PTC_MAX_DEVICES_PER_NODE 64
#define PTC_MAX_REGIONS          (1u << 24) /* regions in one layout */
#define PTC_MAX_DECLARED_BOXES   1024       /* boxes of one tensor on one rank; frameworks make fewer than 20 */
#define PTC_MAX_BOXES            (1u << 20) /* boxes in one wire message */

/* The program of a live job. The kernel takes 2 MiB of arguments and environment; etcd holds the description. */
#define PTC_RUN_MAX_ARGS        4096
#define PTC_RUN_ARGS_BYTES      (128 << 10)
#define PTC_RUN_MAX_ENV         4096
#define PTC_RUN_ENV_BYTES       (256 << 10)
#define PTC_RUN_CWD_MAX         4095      /* Linux's PATH_MAX less its NUL */
#define PTC_RUN_GRACE_MAX_MS    86400000  /* a day; a switch waits for it */
#define PTC_RUN_BOUNDARY_MIN_MS 1000      /* less would refuse every switch */
#define PTC_RUN_BOUNDARY_MAX_MS 604800000 /* a week */
#define PTC_RUN_LOG_MIN_BYTES   65536
#define PTC_RUN_LOG_MAX_BYTES   (UINT64_C(1) << 40)

#define PTC_SPEC_MAX_BYTES         (64u << 20) /* canonical spec JSON */
#define PTC_JOB_YAML_MAX_BYTES     (16u << 20)
#define PTC_SAFETENSORS_HEADER_MAX 100000000u          /* the format's own limit */
#define PTC_CONTROL_FIELDS_MAX     (1u << 16)          /* fields of a control request, nested ones too */
#define PTC_CONTROL_MESSAGE_MAX    (80u << 20)         /* one control message; it can hold a spec */
#define PTC_BULK_MESSAGE_MAX       (4u << 20)          /* one Fetch/Put message */
#define PTC_HUGE_PAGE_BYTES        (UINT64_C(2) << 20) /* huge pages of x86-64, and of arm64 with 4 KiB pages */
#define PTC_BULK_MESSAGE_BYTES     (2u << 20)          /* the size that we send; see docs/benchmarking.md */
#define PTC_MAX_USER_CALLS         24                  /* calls that run at once for one user's clients */
#define PTC_MAX_SERVER_CALLS       64                  /* handlers that run at once in each server */

#define PTC_CHUNK_BYTES      ((1u << 20) - 64) /* 256 pages, less LMDB's page header and alignment */
#define PTC_BLOCK_BYTES      (64u << 10)       /* unit of the store's checksums */
#define PTC_READ_MANY_BYTES  (1u << 20)        /* sum of all ranges of one ReadMany */
#define PTC_READ_MANY_RANGES 8192
#define PTC_EXTENT_MAX_BYTES (8u << 20) /* unit of transfer, and of the choice between reference and copy */

#define PTC_MAX_DATASETS     4096                /* registered; one answer lists them all */
#define PTC_RECORD_MAX_BYTES 4096                /* the committed record in etcd */
#define PTC_ETCD_VALUE_MAX   (512u << 10)        /* one part of a blob; etcd's request limit is 1.5 MiB */
#define PTC_EVENT_MAX_BYTES  2048                /* one event of a job, as JSON */
#define PTC_ETCD_QUOTA       (UINT64_C(2) << 30) /* etcd's own default for its database */
#define PTC_ETCD_TXN_OPS_MAX 120                 /* etcd's limit is 128 */

#define PTC_MAX_PINS       256    /* snapshots that readers pin on one node; each keeps chunks from being freed */
#define PTC_PIN_READER_MAX 63     /* a reader's name */
#define PTC_PIN_MAX_MS     120000 /* one pin's lease; the pin of a reader that dies keeps memory for this time */
