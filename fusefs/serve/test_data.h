/* SPDX-License-Identifier: Apache-2.0 */
/* A job's data in memory, for tests and the fuzzer: "text", sequences of different lengths, "pics", files, "long", the
 * same sequences divided by length, and "fast", of which one rank took more micro steps. All are on another node, so no
 * file is opened. Generation 1 of all but pics is in the ledger; generation 2 goes on. Any thread. */
#pragma once

#include "base/alloc.h"
#include "base/check.h"
#include <ptc/admin_state.h>

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DATA_UUID   "00000000-0000-4000-8000-000000000003"
#define DATA_TEXTS  200
#define DATA_STRIDE 12288 /* the longest text */
#define DATA_GLOBAL 4     /* batch; in micro batches of 1 over dp=2 */
#define DATA_SECOND 12    /* where generation 2 of text begins */
#define DATA_PICS   5
#define DATA_LONG                                                                                                      \
	"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"         \
	"0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"         \
	"012345678901234567890123456789012345678901234567890.png" /* 255 bytes */

static const char *const data_pics[DATA_PICS] = { "a.jpg", "deep/er/b.jpg", "c\xc3\xa9.jpg", "-", DATA_LONG };

struct memory_samples {
	_Atomic bool hung; /* calls wait, as for a dead disk, and fail in the end */
	_Atomic int calls, ahead_calls;
	_Atomic bool ahead[DATA_TEXTS]; /* samples of text that were asked for ahead */
	_Atomic int error;              /* the code with which calls fail; 0: they succeed */
};

static inline uint64_t data_text_bytes(uint64_t sample)
{
	return 4096 * (1 + sample % 3);
}

static inline uint64_t data_pic_bytes(uint64_t sample)
{
	return 700 * sample; /* one is empty */
}

static inline uint8_t data_byte(bool text, uint64_t sample, uint64_t off)
{
	return (uint8_t)((off * 2654435761u >> 11) + sample * 37 + (text ? 1 : 200));
}

#define DATA_FILE_PRINT "{\"suffix\":\"\",\"bytes\":9,\"mtime_ns\":1,\"ends\":\"0123456789abcdef\"}"
#define DATA_PART(name, kind, dtype, samples, longest, prints)                                                         \
	"{\"dataset\":\"" name "\",\"weight\":1,\"block\":0,\"sequential\":false,\"source\":{\"version\":1,"           \
	"\"name\":\"" name "\",\"uid\":0,\"kind\":\"" kind "\",\"path\":\"/nowhere\",\"dtype\":\"" dtype               \
	"\",\"record\":0,\"samples\":" samples ",\"documents\":0,\"bytes\":9,\"longest_bytes\":" longest               \
	",\"created_ms\":0,\"node\":\"elsewhere\",\"fingerprint\":{\"files\":[" prints "]}}}"

/* As the daemon answers (docs/control.md, "job data"). */
static const char data_answer[] =
	"{\"version\":1,\"node\":\"n0\",\"job\":\"data\",\"uuid\":\"" DATA_UUID
	"\",\"generation\":2,\"snapshot\":1,\"step\":3,\"config\":\"dp=2\",\"created_ms\":1000000,\"ledger\":{"
	"\"forgotten\":0,\"entries\":[{\"cursor\":\"text\",\"generation\":1,\"steps\":[0,3],\"positions\":[0,12],"
	"\"dp\":2,\"micro_batch\":1,\"global_batch\":4,\"tag\":\"\"},"
	"{\"cursor\":\"long\",\"generation\":1,\"steps\":[0,3],\"positions\":[0,18],\"dp\":2,\"micro_batch\":2,"
	"\"global_batch\":6,\"tag\":\"n=200,seed=7;counted,batch=6,micro=2,by_length=1,linear=3,square=1\"},"
	"{\"cursor\":\"fast\",\"generation\":1,\"steps\":[0,3],\"positions\":[0,21],\"dp\":2,\"micro_batch\":2,"
	"\"global_batch\":7,\"tag\":\"n=200,seed=7;batch=7,micro=2,micro_steps=1x3:1x1\"}]},"
	"\"cost_linear\":5,\"cost_square\":2,\"data\":["
	"{\"name\":\"long\",\"seed\":7,\"global_batch\":6,\"micro_batch\":2,\"by_length\":true,\"parts\":[" DATA_PART(
		"t", "indexed", "int32", "200", "12288",
		DATA_FILE_PRINT
		"," DATA_FILE_PRINT) "]},"
				     "{\"name\":\"fast\",\"seed\":7,\"global_batch\":7,"
				     "\"micro_batch\":2,\"parts\":[" DATA_PART(
					     "t", "indexed", "int32", "200", "12288",
					     DATA_FILE_PRINT
					     "," DATA_FILE_PRINT) "]},"
								  "{\"name\":\"text\",\"seed\":5,\"global_batch\":4,"
								  "\"micro_batch\":1,\"parts\":[" DATA_PART(
									  "t", "indexed", "int32", "200", "12288",
									  DATA_FILE_PRINT
									  "," DATA_FILE_PRINT) "]},"
											       "{\"name\":\"pics\","
											       "\"seed\":6,\"global_"
											       "batch\":3,\"micro_"
											       "batch\":1,\"parts\":"
											       "[" DATA_PART(
												       "p", "files", "",
												       "5", "2800",
												       DATA_FILE_PRINT) "]},"
															"{\"name\":\"vague\",\"seed\":6,\"global_batch\":0,"
															"\"micro_batch\":0,\"parts\":[" DATA_PART(
																"p",
																"files",
																"",
																"5",
																"2800",
																DATA_FILE_PRINT) "]}]}";

static inline int data_sample(const struct ptc_admin_samples *what, bool text, size_t i, ptc_admin_sample_fn fn,
			      void *fn_arg, struct ptc_error *err)
{
	uint64_t sample = what->samples[i], from = what->offsets ? what->offsets[i] : 0;
	struct ptc_admin_sample s = { .size = sizeof s,
				      .bytes = text ? data_text_bytes(sample) : data_pic_bytes(sample) };
	uint8_t *bytes;
	int rc;

	if (sample >= (text ? DATA_TEXTS : DATA_PICS) || (what->names && text))
		return ptc_error_set(err, PTC_EINVAL, "no such sample");
	if (what->offsets && from < s.bytes)
		s.len = (size_t)PTC_MIN(s.bytes - from, (uint64_t)what->lengths[i]);
	if (what->names) {
		s.name = data_pics[sample];
		s.name_len = strlen(s.name);
	}
	bytes = ptc_malloc(PTC_MAX(s.len, (size_t)1));
	if (!bytes)
		return ptc_nomem(err);
	for (size_t k = 0; k < s.len; k++)
		bytes[k] = data_byte(text, sample, from + k);
	s.data = bytes;
	rc = fn(fn_arg, i, &s, err);
	ptc_free(bytes);
	return rc;
}

static inline int data_samples(struct memory_samples *m, const struct ptc_admin_samples *what, ptc_admin_sample_fn fn,
			       void *fn_arg, struct ptc_error *err)
{
	bool text = !strcmp(what->dataset, "t");
	int rc = m->error;

	*(what->ahead ? &m->ahead_calls : &m->calls) += 1;
	for (int ms = 0; m->hung; ms += 10) {
		if (ms > 3000)
			return ptc_error_set(err, PTC_ETIMEOUT, "hung");
		usleep(10 * 1000);
	}
	for (size_t i = 0; what->ahead && text && i < what->n; i++)
		m->ahead[what->samples[i] % DATA_TEXTS] = true;
	for (size_t i = 0; !rc && !what->ahead && i < what->n; i++)
		rc = data_sample(what, text, i, fn, fn_arg, err);
	return rc ? ptc_error_set(err, rc, "no samples") : 0;
}
