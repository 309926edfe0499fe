/* SPDX-License-Identifier: Apache-2.0 */
/* Unit tests of formats/job/job.h: decoding, strictness, round trips, rule sets. */
#include "base/alloc.h"
#include "base/buf.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "formats/job/job.h"
#include "formats/json.h"
#include "formats/names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TENSORS                                                                                                        \
	"tensors:\n"                                                                                                   \
	"  - {name: h.1.w, dtype: F32, shape: [8, 4]}\n"                                                               \
	"  - {name: h.0.w, dtype: F32, shape: [8, 4]}\n"                                                               \
	"  - {name: s, dtype: I64, shape: []}\n"
#define LIVE "version: 1\nname: live\nrun:\n  cwd: /data\n  argv: [python3, train.py]\n"
#define HEAD "version: 1\nname: tiny\n" TENSORS

static int decode(const char *yaml, struct ptc_job_desc *job, struct ptc_error *err)
{
	return ptc_job_from_yaml("job.yaml", yaml, strlen(yaml), NULL, TEST_RULES_DIR, job, err);
}

static void refuse(const char *yaml, int code, const char *part)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };
	int64_t live = ptc_alloc_live();
	int rc = decode(yaml, &job, &err);

	if (rc != code || !strstr(err.text, part))
		fail_msg("%s: \"%s\" does not contain \"%s\"", ptc_status_name(rc), err.text, part);
	assert_null(strchr(err.text, '\n'));
	assert_int_equal(ptc_alloc_live(), live);
}

static void test_full(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };
	int rc = decode(HEAD "fields: {master: {}, exp_avg: {dtype: BF16}}\n"
			     "rules:\n"
			     "  - match: h.*\n"
			     "    split: {axis: tp, dim: 0, blocks: [4, 4], unit: 2}\n"
			     "    layer: h.{}.*\n"
			     "    fields: {master: {split: {axis: none}, state: reset}}\n"
			     "  - {match: '*', layer: last, state: replicate}\n"
			     "gpus:\n"
			     "  4: {tp: 2, pp: 2, stages: [1, 1]}\n"
			     "  2: dp=2,zero=1\n",
			&job, &err);

	if (rc)
		fail_msg("%s", err.text);
	assert_string_equal(job.spec.name, "tiny");
	assert_int_equal(job.spec.ntensors, 3);
	assert_string_equal(job.spec.tensors[0].name, "h.0.w"); /* sorted */
	assert_int_equal(job.spec.tensors[2].ndim, 0);
	assert_int_equal(job.spec.nfields, 2);
	assert_string_equal(job.spec.fields[0].name, "exp_avg");
	assert_int_equal(job.spec.fields[0].dtype, PTC_BF16);
	assert_true(job.spec.fields[1].same_dtype);
	assert_int_equal(job.spec.nrules, 3);
	assert_string_equal(job.spec.rules[0].fields, "master"); /* ahead of the rule it overrides */
	assert_int_equal(job.spec.rules[0].splits[0].axis, PTC_AXIS_NONE);
	assert_int_equal(job.spec.rules[0].carry, PTC_CARRY_RESET);
	assert_int_equal(job.spec.rules[0].shard, PTC_SHARD_CONFIG);
	assert_string_equal(job.spec.rules[0].layer, "h.{}.*");
	assert_int_equal(job.spec.rules[1].splits[0].axis, PTC_AXIS_TP);
	assert_int_equal(job.spec.rules[1].splits[0].nblocks, 2);
	assert_int_equal(job.spec.rules[1].splits[0].unit, 2);
	assert_null(job.spec.rules[1].fields);
	assert_int_equal(job.spec.rules[2].place, PTC_PLACE_LAST);
	assert_int_equal(job.spec.rules[2].carry, PTC_CARRY_REPLICATE);
	assert_int_equal(job.spec.rules[2].shard, PTC_SHARD_NONE); /* whole, whatever zero cuts */
	assert_int_equal(job.ngpus, 2);
	assert_int_equal(job.gpus[0].n, 2);
	assert_int_equal(ptc_job_config_for(&job, 4)->stages[1], 1);
	assert_null(ptc_job_config_for(&job, 8));
	assert_null(job.source);
	ptc_job_desc_done(&job);
}

/* Canonical JSON and any other JSON of the same job give the same description, and the same errors. */
static void test_two_ways(void **state)
{
	static const char *const head = "{\"version\":1,\"name\":\"j\",\"tensors\":[",
				 *const tail = "],\"rules\":[{\"match\":\"*\",\"state\":\"carry\"}]}";
	static const struct {
		const char *tensors, *says; /* NULL: fine */
	} cases[] = {
		{ "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[8,4]},{\"name\":\"b\\\"c\",\"dtype\":\"I64\",\"shape\":"
		  "[]}",
		  NULL },
		{ "{\"name\":\"b\",\"dtype\":\"F32\",\"shape\":[0]},{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[3]}",
		  NULL },
		{ "{\"dtype\":\"F32\",\"name\":\"a\",\"shape\":[8]}", NULL },
		{ "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[4611686018427387904,0]}", "total size overflows" },
		{ "", "the job has no tensors" },
		{ "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[8]},{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[8]}",
		  "tensor \"a\" appears twice" },
		{ "{\"name\":\"a\",\"dtype\":\"F33\",\"shape\":[8]}", "unknown dtype \"F33\"" },
		{ "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[-1]}", "a size" },
		{ "{\"name\":\"a\",\"dtype\":\"F4\",\"shape\":[3]}", "are not whole bytes" },
		{ "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1]}", "9 dims, at most 8" },
		{ "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[8],\"more\":1}", "unknown key \"more\"" },
		{ "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[8]},", "unexpected token" },
		/* Canonical up to here, but the list goes on. */
		{ "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[8]} ,{\"name\":\"b\",\"dtype\":\"U8\",\"shape\":[3]}",
		  NULL },
		{ "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[8]}{\"name\":\"b\",\"dtype\":\"U8\",\"shape\":[3]}",
		  "']' expected" },
		{ "{\"name\":\"a\",\"dtype\":\"F32\",\"shape\":[8]} null", "']' expected" },
	};

	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		for (int spaced = 0; spaced < 2; spaced++) { /* spaces are not canonical */
			struct ptc_error err = PTC_ERROR_INIT;
			struct ptc_job_desc job = { 0 };
			char text[1024], *json = NULL;
			size_t n = 0;
			int rc;

			snprintf(text, sizeof text, "%s%s%s%s", head, spaced ? " " : "", cases[i].tensors, tail);
			rc = ptc_job_from_json(text, strlen(text), &job, &err);
			if ((rc == 0) != !cases[i].says || (cases[i].says && !strstr(err.text, cases[i].says)))
				fail_msg("%s: %d, %s", text, rc, err.text);
			if (rc)
				continue;
			assert_int_equal(ptc_job_to_json(&job, &json, &n, &err), 0);
			ptc_job_desc_done(&job);
			assert_int_equal(ptc_job_from_json(json, n, &job, &err), 0);
			ptc_job_desc_done(&job);
			ptc_free(json);
		}
	}
}

/* The canonical text is fixed: it is hashed, and etcd holds it. */
static void test_canonical(void **state)
{
	static const char want[] =
		"{\"version\":1,\"name\":\"tiny\",\"tensors\":[{\"name\":\"h.0.w\",\"dtype\":\"F32\",\"shape\":[8,4]},"
		"{\"name\":\"h.1.w\",\"dtype\":\"F32\",\"shape\":[8,4]},{\"name\":\"s\",\"dtype\":\"I64\",\"shape\":[]}"
		"],"
		"\"fields\":{\"a\":{\"dtype\":\"same\"},\"b\":{\"dtype\":\"F16\"}},"
		"\"rules\":[{\"match\":\"h.*\",\"layer\":\"first\",\"fields\":[\"b\"],\"state\":\"carry\"},"
		"{\"match\":\"h.*\",\"split\":{\"axis\":\"tp\",\"dim\":1,\"kind\":\"balanced\",\"unit\":1},\"layer\":"
		"\"h.{}.w\","
		"\"state\":\"carry\"}],\"gpus\":{\"2\":\"tp=2\",\"4\":\"tp=2,pp=2\"}}";
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 }, again = { 0 };
	char *json = NULL, *json2 = NULL;
	size_t n = 0, n2 = 0;

	assert_int_equal(decode(HEAD "fields: {b: {dtype: F16}, a: {dtype: same}}\n"
				     "gpus: {4: {pp: 2, tp: 2}, 2: {tp: 2}}\n"
				     "rules: [{match: h.*, split: {axis: tp, dim: 1, kind: balanced, unit: 1},\n"
				     "         layer: 'h.{}.w', fields: {b: {split: {axis: none}, layer: first}}}]\n",
				&job, &err),
			 0);
	assert_int_equal(ptc_job_to_json(&job, &json, &n, &err), 0);
	assert_string_equal(json, want);
	assert_int_equal(n, strlen(want));
	assert_int_equal(ptc_job_from_json(json, n, &again, &err), 0);
	assert_int_equal(ptc_job_to_json(&again, &json2, &n2, &err), 0);
	assert_string_equal(json2, want);
	ptc_job_desc_done(&job);
	ptc_job_desc_done(&again);
	ptc_free(json);
	ptc_free(json2);
}

#define RULES "rules: [{match: '*'}]\n"

static void test_keys(void **state)
{
	refuse("version: 1\nname: a\ntensros: []\n" RULES, PTC_EINVAL,
	       "job.yaml:3: unknown key \"tensros\" in the job; did you mean \"tensors\"?");
	refuse(HEAD "rules:\n  - match: a\n    splt: {}\n", PTC_EINVAL,
	       "job.yaml:9: unknown key \"splt\" in a rule; did you mean \"split\"");
	refuse(HEAD "rules: [{match: a, split: {axs: tp}}]", PTC_EINVAL, "did you mean \"axis\"");
	refuse(HEAD RULES "gpus: {2: {tq: 2}}", PTC_EINVAL,
	       "unknown key \"tq\" in a configuration; did you mean \"tp\"");
	refuse(HEAD RULES "fields: {a: {type: F32}}", PTC_EINVAL, "did you mean \"dtype\"");
	refuse(HEAD RULES "name: b\n", PTC_EINVAL, "job.yaml:8: key \"name\" appears twice");
	refuse("version: 2\nfoo: bar\n", PTC_EVERSION, "job.yaml:1: version 2 is not supported");
	refuse("name: a\n", PTC_EINVAL, "no \"version\"");
	refuse("version: 1\n" TENSORS RULES, PTC_EINVAL, "no \"name\"");
	refuse("version: 1\nname: a\n" RULES, PTC_EINVAL, "no \"tensors\"");
	refuse(HEAD, PTC_EINVAL, "no \"rules\"");
	refuse("", PTC_EINVAL, "empty document");
	refuse("- a\n", PTC_EINVAL, "not a map");
	refuse("a: [", PTC_EINVAL, "job.yaml:");
}

static void test_values(void **state)
{
	refuse("version: 1\nname: ../x\n" TENSORS RULES, PTC_EINVAL, "job.yaml:2: name \"../x\"");
	refuse("version: 1\nname: -x\n" TENSORS RULES, PTC_EINVAL, "name \"-x\"");
	refuse("version: 1\nname: Big\n" TENSORS RULES, PTC_EINVAL, "name \"Big\"");
	refuse("version: 1\nname: a\ntensors: [{name: ../a, dtype: U8, shape: [1]}]\n" RULES, PTC_EINVAL, "\"..\"");
	refuse("version: 1\nname: a\ntensors: [{name: a, dtype: F33, shape: [1]}]\n" RULES, PTC_EINVAL,
	       "unknown dtype \"F33\"; did you mean \"F32\"");
	refuse("version: 1\nname: a\ntensors: [{name: a, dtype: U8, shape: [-1]}]\n" RULES, PTC_EINVAL, "whole number");
	refuse("version: 1\nname: a\ntensors: [{name: a, dtype: U8, shape: ['1']}]\n" RULES, PTC_EINVAL,
	       "whole number");
	refuse("version: 1\nname: a\ntensors: [{name: a, dtype: U8, shape: [010]}]\n" RULES, PTC_EINVAL,
	       "whole number");
	refuse("version: 1\nname: a\ntensors: [{name: a, dtype: U8, shape: [99999999999999999999]}]\n" RULES,
	       PTC_EINVAL, "too large");
	refuse("version: 1\nname: a\ntensors: [{name: a, dtype: F32, shape: [9223372036854775807]}]\n" RULES,
	       PTC_EINVAL, "overflows");
	refuse("version: 1\nname: a\ntensors: [{name: a, dtype: F4, shape: [3]}]\n" RULES, PTC_EINVAL,
	       "not whole bytes");
	refuse("version: 1\nname: a\ntensors: [{name: a, dtype: U8, shape: [1]}, {name: a, dtype: U8, shape: "
	       "[1]}]\n" RULES,
	       PTC_EINVAL, "appears twice");
	refuse("version: 1\nname: a\ntensors: []\n" RULES, PTC_EINVAL, "no tensors");
	refuse("version: 1\nname: a\ntensors: {from: x.safetensors}\n" RULES, PTC_EINVAL, "must be a list here");
	refuse(HEAD RULES "fields: {'a:b': {}}", PTC_EINVAL, "field name \"a:b\"");
	refuse(HEAD RULES "fields: {model: {}}", PTC_EINVAL, "field name \"model\" is reserved");
	refuse(HEAD RULES "fields: {param: {}}", PTC_EINVAL, "field name \"param\" is reserved");
	refuse(HEAD RULES "fields: [a]", PTC_EINVAL, "must be a map");
	refuse(HEAD "rules: []", PTC_EINVAL, "rules must be");
	refuse(HEAD "rules: [{split: {axis: tp, dim: 0}}]", PTC_EINVAL, "no \"match\"");
	refuse(HEAD "rules: [{match: a, split: {dim: 0}}]", PTC_EINVAL, "no \"axis\"");
	refuse(HEAD "rules: [{match: a, split: {axis: tp}}]", PTC_EINVAL, "no \"dim\"");
	refuse(HEAD "rules: [{match: a, split: {axis: none, dim: 0}}]", PTC_EINVAL, "axis none");
	refuse(HEAD "rules: [{match: a, split: {axis: sp, dim: 0}}]", PTC_EINVAL, "unknown axis \"sp\"");
	refuse(HEAD "rules: [{match: a, split: {axis: tp, dim: 0, kind: evn}}]", PTC_EINVAL, "did you mean \"even\"");
	refuse(HEAD "rules: [{match: a, split: {axis: tp, dim: 0, blocks: [0]}}]", PTC_EINVAL, "blocks must be in 1..");
	refuse(HEAD "rules: [{match: a, layer: middle}]", PTC_EINVAL, "layer must be");
	refuse(HEAD "rules: [{match: a, layer: 'h.{}.{}'}]", PTC_EINVAL, "layer must be");
	refuse(HEAD "rules: [{match: a, state: cary}]", PTC_EINVAL, "did you mean \"carry\"");
	refuse(HEAD "fields: {moment: {}}\nrules: [{match: a, fields: [momnt]}]", PTC_EINVAL,
	       "not one of the job's fields; did you mean \"moment\"");
	refuse(HEAD "rules: [{match: a, fields: {n: {state: carry}}}]", PTC_EINVAL, "not one of the job's fields");
	refuse(HEAD RULES "gpus: {}", PTC_EINVAL, "gpus must be");
	refuse(HEAD RULES "gpus: {x: {tp: 1}}", PTC_EINVAL, "number of devices");
	refuse(HEAD RULES "gpus: {8: {tp: 2, pp: 2}}", PTC_EINVAL,
	       "job.yaml:8: the configuration for 8 devices has 4 ranks");
	refuse(HEAD RULES "gpus: {2: {tp: two}}", PTC_EINVAL, "tp must be a whole number");
	refuse(HEAD RULES "gpus: {2: {}}", PTC_EINVAL, "empty configuration");
	refuse(HEAD RULES "gpus: {2: 'tp=2,tp=2'}", PTC_EINVAL, "job.yaml:8: ");
	/* the linter's errors arrive */
	refuse(HEAD "rules: [{match: 'h.*', split: {axis: tp, dim: 7}}]", PTC_ELAYOUT, "h.0.w");
}

/* States that are not carried out are refused of people, and of clients; of jobs made before that, they are read. */
static void test_states(void **state)
{
	static const char *const whole = "needs tensors that every rank has whole",
				 *const json =
					 "{\"version\":1,\"name\":\"a\",\"tensors\":[{\"name\":\"t\",\"dtype\":\"F32\","
					 "\"shape\":[4]}],\"rules\":[{\"match\":\"*\",\"state\":\"%s\"%s}]}";
	static const struct {
		const char *state, *more, *wrong;
	} cases[] = {
		{ "carry", "", NULL },
		{ "reset", "", NULL },
		{ "refuse", "", NULL },
		{ "max", ",\"shard\":\"none\"", NULL },
		{ "max", "", "rule \"*\": state max needs tensors that every rank has whole" },
		{ "max", ",\"shard\":\"none\",\"split\":{\"axis\":\"tp\",\"dim\":0}", "leave out split, expert" },
		{ "derive", "", "rule \"*\": state derive is for parameters and must name the field" },
		{ "replicate", ",\"shard\":\"none\"", NULL },
		{ "replicate", "", "needs tensors that every rank has whole" },
		{ "replicate", ",\"shard\":\"none\",\"split\":{\"axis\":\"tp\",\"dim\":0}", "leave out split, expert" },
	};

	refuse(HEAD "fields: {m: {}}\nrules: [{match: a, fields: {m: {state: derive}}}]", PTC_EINVAL,
	       "rule \"a\", fields m: state derive is for parameters and must name the field");
	refuse(HEAD "fields: {m: {}}\nrules: [{match: '*', state: {derive: n}}]", PTC_EINVAL,
	       "\"n\" is not one of the job's");
	refuse(HEAD "fields: {m: {}}\nrules: [{match: '*', state: {from: m}}]", PTC_EINVAL, "job.yaml:");
	refuse(HEAD "fields: {m: {}}\nrules: [{match: '*', state: {}}]", PTC_EINVAL,
	       "state must have one of \"derive\" and \"replicate\"");
	refuse(HEAD "fields: {m: {dtype: F32}}\nrules: [{match: '*', fields: [m], state: {derive: m}}]", PTC_EINVAL,
	       "only a rule for parameters");
	refuse(HEAD "rules: [{match: 'h.*', split: {axis: tp, dim: 0}, state: replicate}]", PTC_EINVAL, whole);
	refuse(HEAD "rules: [{match: 'h.*', shard: flat, state: replicate}]", PTC_EINVAL, whole);
	refuse(HEAD "rules: [{match: 'h.{}.w', expert: 'h.{}.w', state: replicate}]", PTC_EINVAL, whole);
	refuse(HEAD "run: {argv: [a], cwd: /}\nrules: [{match: '*', state: reset}]", PTC_EINVAL,
	       "not supported in a live job");
	refuse(HEAD "rules: [{match: '*', state: {replicate: {dp: 0}}}]", PTC_EINVAL,
	       "needs ranks that declare their tensors");
	refuse(HEAD "rules: [{match: '*', state: {replicate: {pp: 0}}}]", PTC_EINVAL, "job.yaml:7");
	refuse(HEAD "rules: [{match: '*', state: {replicate: {dp: 0, tp: 0}}}]", PTC_EINVAL,
	       "replicate must name one axis");
	refuse(HEAD "rules: [{match: '*', state: {replicate: {dp: -1}}}]", PTC_EINVAL, "job.yaml:7");
	refuse(HEAD "rules: [{match: '*', state: {replicate: {dp: 0}, derive: m}}]", PTC_EINVAL,
	       "state must have one of");
	refuse(LIVE "rules: [{match: '*', split: {axis: tp, dim: 0}}]", PTC_EINVAL,
	       "rules of a live job without \"tensors\" only choose the primary replica");
	refuse(LIVE "rules: [{match: '*', shard: flat, state: {replicate: {dp: 0}}}]", PTC_EINVAL, whole);
	refuse("version: 1\nname: a\ntensors: [{name: b, dtype: BF16, shape: [4]}]\nfields: {m: {dtype: F32}}\n"
	       "run: {argv: [a], cwd: /}\nrules: [{match: '*', state: {derive: m}}]",
	       PTC_EINVAL, "state derive is not supported in a live job");
	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_job_desc job = { 0 };
		char text[512];
		int n = snprintf(text, sizeof text, json, cases[i].state, cases[i].more), rc;

		assert_int_equal(ptc_job_from_json(text, (size_t)n, &job, &err), 0);
		rc = ptc_job_check_states(&job, &err);
		assert_int_equal(rc, cases[i].wrong ? PTC_EINVAL : 0);
		if (cases[i].wrong && !strstr(err.text, cases[i].wrong))
			fail_msg("%s", err.text);
		ptc_job_desc_done(&job);
	}
}

/* The greatest is of what is whole on every rank, and of what has an order. */
static void test_state_max(void **state)
{
	static const char *const whole = "needs tensors that every rank has whole";

	refuse(HEAD "rules: [{match: 'h.*', split: {axis: tp, dim: 0}, state: max}]", PTC_EINVAL, whole);
	refuse(HEAD "rules: [{match: 'h.*', shard: {dim: 0}, state: max}]", PTC_EINVAL, whole);
	refuse(HEAD "rules: [{match: 'h.{}.w', expert: 'h.{}.w', state: max}]", PTC_EINVAL, whole);
	refuse("version: 1\nname: a\ntensors: [{name: b, dtype: F8_E4M3, shape: [4]}]\nrules: [{match: '*', state: "
	       "max}]",
	       PTC_ELAYOUT, "tensor \"b\" (F8_E4M3): rule \"*\" takes the greatest");
	refuse("version: 1\nname: a\ntensors: [{name: b, dtype: F32, shape: [4]}]\nfields: {m: {dtype: C64}}\n"
	       "rules: [{match: '*', fields: {m: {state: max}}}]",
	       PTC_ELAYOUT, "tensor \"b:m\" (C64): rule \"*\"");
	refuse(LIVE "rules: [{match: '*', shard: flat, state: max}]", PTC_EINVAL, whole);
}

static void test_yaml_tricks(void **state)
{
	static char deep[400];

	refuse("a: &x [1]\n", PTC_EINVAL, "job.yaml:1: anchors and tags");
	refuse("a: &x 1\n", PTC_EINVAL, "anchors and tags");
	refuse("a: !!str 1\n", PTC_EINVAL, "anchors and tags");
	refuse(HEAD "rules: [{match: *}]", PTC_EINVAL, "job.yaml:7");
	refuse("a: *x\n", PTC_EINVAL, "aliases are not allowed");
	refuse("? [a]\n: b\n", PTC_EINVAL, "a key must be");
	refuse("? {a: b}\n: b\n", PTC_EINVAL, "a key must be");
	refuse("a: 1\n---\nb: 1\n", PTC_EINVAL, "more than one document");
	refuse("a: \"x\\0y\"\n", PTC_EINVAL, "NUL");
	memset(deep, '[', sizeof(deep) - 1);
	refuse(deep, PTC_ELIMIT, "nested too deeply");
}

static void refuse_json(const char *json, int code, const char *part)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };
	int64_t live = ptc_alloc_live();
	int rc = ptc_job_from_json(json, strlen(json), &job, &err);

	if (rc != code || !strstr(err.text, part))
		fail_msg("%s: \"%s\" does not contain \"%s\"", ptc_status_name(rc), err.text, part);
	assert_int_equal(ptc_alloc_live(), live);
}

#define JSON_HEAD "{\"version\":1,\"name\":\"j\",\"tensors\":[{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[4]}]"

static void test_json(void **state)
{
	refuse_json(JSON_HEAD "}", PTC_EINVAL, "no \"rules\"");
	refuse_json(JSON_HEAD ",\"rules\":\"bert\"}", PTC_EINVAL, "must be a list here");
	refuse_json("{\"version\":1,\"name\":\"j\",\"tensors\":{\"from\":\"/etc/passwd\"}}", PTC_EINVAL,
		    "must be a list here");
	refuse_json(JSON_HEAD ",\"rule\":[]}", PTC_EINVAL, "did you mean \"rules\"");
	refuse_json(JSON_HEAD ",\"rules\":[{\"match\":\"a\",\"state\":null}]}", PTC_EINVAL, "only strings");
	refuse_json(JSON_HEAD ",\"rules\":[{\"match\":1}]}", PTC_EINVAL, "match must be a word");
	refuse_json(JSON_HEAD ",\"rules\":[{\"match\":\"a\"}],\"rules\":[]}", PTC_EINVAL, "duplicate");
	refuse_json("{\"version\":\"1\"}", PTC_EINVAL, "version must be a whole number");
	refuse_json("{\"version\":1.0}", PTC_EINVAL, "only strings");
	refuse_json("[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]", PTC_ELIMIT, "nested too deeply");
	refuse_json("", PTC_EINVAL, "spec");
	refuse_json(JSON_HEAD ",\"rules\":[{\"match\":\"a\"}],\"gpus\":{\"2\":\"tp=3\"}}", PTC_EINVAL,
		    "spec: the configuration for 2 devices");
	refuse_json(JSON_HEAD ",\"rules\":[{\"match\":\"a\"}],\"gpus\":{\"2\":\"tq=3\"}}", PTC_EINVAL, "spec: gpus 2");
}

/* Canonical, or with a space before. */
static void no_memory(bool spaced, int least)
{
	static const char text[] =
		" " JSON_HEAD ",\"fields\":{\"m\":{}},\"rules\":[{\"match\":\"a\",\"split\":{\"axis\":\"tp\","
		"\"dim\":0,\"blocks\":[2,2]},\"fields\":{\"m\":{\"state\":\"reset\"}}}],"
		"\"gpus\":{\"2\":\"tp=2\"}}";
	const char *json = text + !spaced;
	int64_t live = ptc_alloc_live();
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };
	int failures = 0;

	for (uint64_t at = 1;; at++) {
		int rc;

		ptc_alloc_fail_at(at);
		rc = ptc_job_from_json(json, strlen(json), &job, &err);
		ptc_alloc_fail_at(0);
		if (!rc)
			break;
		failures++;
		assert_true(rc == PTC_ENOMEM || rc == PTC_EINVAL); /* jansson blurs some */
		assert_int_equal(ptc_alloc_live(), live);
	}
	assert_true(failures > least);
	ptc_job_desc_done(&job);
	assert_int_equal(ptc_alloc_live(), live);
}

static void test_no_memory(void **state)
{
	(void)state;
	no_memory(false, 10);
	no_memory(true, 20);
}

/* ---- live jobs ---- */

static void test_run(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };

	if (decode(LIVE "  env: {B: 2, A: 'x=y', EMPTY: ''}\n"
			"  grace: 5s\n"
			"  boundary_timeout: 1.5h\n"
			"  build_timeout: 2h\n"
			"  log_bytes: 1GiB\n"
			"mode: rebuild\n"
			"copy: fast\n"
			"snapshot_every: 100\n"
			"seed: 9223372036854775807\n"
			"gpus: {2: {dp: 2}}\n",
		   &job, &err))
		fail_msg("%s", err.text);
	assert_true(job.has_run);
	assert_int_equal(job.run.argc, 2);
	assert_string_equal(job.run.argv[1], "train.py");
	assert_null(job.run.argv[2]);
	assert_string_equal(job.run.cwd, "/data");
	assert_int_equal(job.run.nenv, 3);
	assert_string_equal(job.run.env[0], "A=x=y");
	assert_string_equal(job.run.env[1], "B=2");
	assert_string_equal(job.run.env[2], "EMPTY=");
	assert_null(job.run.env[3]);
	assert_int_equal(job.run.grace_ms, 5000);
	assert_int_equal(job.run.boundary_timeout_ms, 5400000);
	assert_int_equal(job.run.build_timeout_ms, 7200000);
	assert_int_equal(job.run.log_bytes, 1 << 30);
	assert_int_equal(job.mode, PTC_JOB_REBUILD);
	assert_int_equal(job.copy, PTC_JOB_COPY_FAST);
	assert_int_equal(job.snapshot_every, 100);
	assert_true(job.has_seed);
	assert_true(ptc_job_seed(&job, "00000000-0000-0000-0000-000000000001") == INT64_MAX);
	assert_int_equal(job.spec.ntensors, 0); /* the ranks declare them */
	assert_int_equal(job.spec.nrules, 0);
	assert_int_equal(job.ngpus, 1);
	ptc_job_desc_done(&job);
	assert_int_equal(decode(LIVE TENSORS "rules: [{match: '*'}]\n", &job, &err), 0); /* they may be said */
	assert_int_equal(job.spec.ntensors, 3);
	assert_int_equal(job.run.grace_ms, 30000);
	assert_int_equal(job.run.boundary_timeout_ms, 1800000);
	assert_int_equal(job.run.build_timeout_ms, 1800000);
	assert_int_equal(job.run.log_bytes, 64 << 20);
	assert_int_equal(job.mode, PTC_JOB_RESTART);
	assert_int_equal(job.copy, PTC_JOB_COPY_LEAN);
	assert_int_equal(job.snapshot_every, 0);
	assert_false(job.has_seed);
	assert_true(ptc_job_seed(&job, "01234567-89ab-4def-fedc-ba9876543210") == UINT64_C(0x0123456789ab4def));
	assert_null(job.run.env);
	ptc_job_desc_done(&job);
}

static void canonical(const char *yaml, const char *want)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };
	char *json = NULL;
	size_t n = 0;

	if (decode(yaml, &job, &err))
		fail_msg("%s", err.text);
	for (int i = 0; i < 2; i++) { /* of the YAML, and of what it became */
		assert_int_equal(ptc_job_to_json(&job, &json, &n, &err), 0);
		ptc_job_desc_done(&job);
		assert_string_equal(json, want);
		if (ptc_job_from_json(json, n, &job, &err))
			fail_msg("%s", err.text);
		ptc_free(json);
	}
	ptc_job_desc_done(&job);
}

static void test_run_canonical(void **state)
{
	canonical(LIVE,
		  "{\"version\":1,\"name\":\"live\",\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"}}");
	canonical(LIVE "  grace: 30000ms\n  boundary_timeout: 0.5h\n  log_bytes: 65536KiB\n  env: {}\n"
		       "mode: restart\ncopy: lean\nsnapshot_every: 0\n",
		  "{\"version\":1,\"name\":\"live\",\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"}}");
	canonical(LIVE "copy: async\n",
		  "{\"version\":1,\"name\":\"live\",\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"},"
		  "\"copy\":\"async\"}");
	canonical(
		"version: 1\nname: live\nseed: 0\nsnapshot_every: 7\ncopy: fast\nmode: rebuild\n"
		"gpus: {2: dp=2}\n"
		"run: {log_bytes: 1000MB, boundary_timeout: 90s, build_timeout: 1m, grace: 0, env: {Z: "
		"\"q\\\"\\x1b\\n\", A: ü, AB: ''},\n"
		"      cwd: /, argv: ['a b', '', \"\\\\\"]}\n",
		"{\"version\":1,\"name\":\"live\",\"gpus\":{\"2\":\"dp=2\"},"
		"\"run\":{\"argv\":[\"a b\",\"\",\"\\\\\"],\"cwd\":\"/\","
		"\"env\":{\"A\":\"ü\",\"AB\":\"\",\"Z\":\"q\\\"\\u001b\\u000a\"},"
		"\"grace\":\"0\",\"boundary_timeout\":\"90s\",\"build_timeout\":\"1m\",\"log_bytes\":\"1000000000B\"},"
		"\"mode\":\"rebuild\",\"copy\":\"fast\",\"snapshot_every\":7,\"seed\":0}");
	canonical(LIVE "rules: [{match: 'bn.*', state: {replicate: {cp: 3}}}]\n",
		  "{\"version\":1,\"name\":\"live\",\"rules\":[{\"match\":\"bn.*\",\"shard\":\"none\",\"state\":{"
		  "\"replicate\":{"
		  "\"cp\":3}}}],\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"}}");
	canonical(LIVE "rules: [{match: '*amax*', state: max}]\n",
		  "{\"version\":1,\"name\":\"live\",\"rules\":[{\"match\":\"*amax*\",\"shard\":\"none\",\"state\":"
		  "\"max\"}],"
		  "\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"}}");
	canonical("version: 1\nname: live\nrules: [{match: '*'}]\ntensors: [{name: a, dtype: U8, shape: [4]}]\n"
		  "run: {cwd: /, argv: [a]}\n",
		  "{\"version\":1,\"name\":\"live\",\"tensors\":[{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[4]}],"
		  "\"rules\":[{\"match\":\"*\",\"state\":\"carry\"}],\"run\":{\"argv\":[\"a\"],\"cwd\":\"/\"}}");
}

/* Each key that a table writes, in the order of the canonical text; and values that equal the defaults are left out. */
static void test_tables_canonical(void **state)
{
	static const char run[] =
		"{\"version\":1,\"name\":\"live\",\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"}";
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };
	char want[1024], *json = NULL;
	size_t n = 0;

	snprintf(want, sizeof want,
		 "%s,\"build\":\"ahead\",\"copy\":\"fast\",\"snapshot_every\":9223372036854775807,\"seed\":1,"
		 "\"elastic\":{\"min_gpus\":2,\"max_gpus\":4,\"on_failure\":\"wait\",\"on_join\":\"grow\","
		 "\"join_after\":\"60000ms\",\"max_restarts\":3,\"standby\":\"import\"},\"share_devices\":\"true\","
		 "\"data\":{\"d\":"
		 "{\"dataset\":\"web\",\"samples\":3,\"shuffle\":\"false\",\"seed\":0,\"micro_batch\":4294967295}},"
		 "\"model\":{\"layers\":2},\"on_link_change\":\"replan\",\"warning\":\"60000ms\","
		 "\"copies\":{\"count\":2,\"across\":\"rack\"},\"archive\":{\"dir\":\"/a\",\"every\":\"2h\","
		 "\"keep\":2,\"rate\":\"10MiB\"},\"keep\":{\"last\":1,\"every\":500}}",
		 run);
	canonical(
		LIVE
		"keep: {every: 500}\narchive: {rate: 10MiB, keep: 2, every: 120m, dir: /a}\nwarning: 1m\n"
		"copies: {across: rack, count: 2}\non_link_change: replan\nmodel: {layers: 2}\n"
		"data: {d: {micro_batch: 4294967295, shuffle: false, samples: 3, dataset: web}}\nshare_devices: true\n"
		"elastic: {standby: import, max_restarts: 3, join_after: 1m, on_join: grow, on_failure: wait, "
		"max_gpus: 4, min_gpus: "
		"2}\n"
		"seed: 1\nsnapshot_every: 9223372036854775807\ncopy: fast\nbuild: ahead\n",
		want);
	snprintf(want, sizeof want,
		 "%s,\"elastic\":{\"on_failure\":\"stop\",\"max_restarts\":1},\"archive\":{\"dir\":\"/a\"},"
		 "\"keep\":{\"last\":64}}",
		 run);
	canonical(LIVE "keep: {last: 64}\narchive: {dir: /a, keep: 3, every: 0}\ncopies: {across: rack, count: 1}\n"
		       "on_link_change: event\nshare_devices: false\nbuild: after\ncopy: lean\nmode: restart\n"
		       "elastic: {on_join: ignore, on_failure: stop, max_restarts: 1}\n",
		  want);
	snprintf(want, sizeof want, "%s}", run);
	canonical(LIVE "elastic: {on_failure: shrink, max_restarts: 0, standby: none}\nkeep: {last: 1}\n", want);
	assert_int_equal(decode(LIVE, &job, &err), 0);
	job.copies.count = job.keep.last = 0; /* as in a description that is not decoded, but made by a program */
	assert_int_equal(ptc_job_to_json(&job, &json, &n, &err), 0);
	assert_string_equal(json, want);
	ptc_free(json);
	ptc_job_desc_done(&job);
}

#define SOURCE "0123456789abcdef0123456789abcdef"

static void test_data(void **state)
{
	static const char run[] =
		"{\"version\":1,\"name\":\"live\",\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"}";
	char want[1024];

	snprintf(want, sizeof want, "%s,\"data\":{\"d\":{\"dataset\":\"web\",\"seed\":0}}}", run);
	canonical(LIVE "data: {d: {dataset: web, shuffle: true}}\n", want);
	snprintf(want, sizeof want,
		 "%s,\"data\":{\"a.b\":{\"dataset\":\"x\",\"source\":\"" SOURCE
		 "\",\"block\":64,\"seed\":9223372036854775807,\"global_batch\":8,\"micro_batch\":2},"
		 "\"z\":{\"mix\":[{\"dataset\":\"x\",\"shuffle\":\"false\",\"weight\":1},"
		 "{\"dataset\":\"y\",\"weight\":67108863}],\"seed\":7}}}",
		 run);
	canonical(LIVE "data:\n  z: {seed: 7, mix: [{dataset: x, shuffle: false}, {dataset: y, weight: 67108863}]}\n"
		       "  a.b: {micro_batch: 2, global_batch: 8, dataset: x, block: 64, source: " SOURCE
		       ", seed: 9223372036854775807}\n",
		  want);
	snprintf(want, sizeof want,
		 "%s,\"data\":{\"d\":{\"dataset\":\"web\",\"seed\":0,\"by_length\":\"true\"}},\"model\":{\"seq\":8}}",
		 run);
	canonical(LIVE "model: {seq: 8}\ndata: {d: {dataset: web, by_length: true}}\n", want);
	snprintf(want, sizeof want, "%s,\"data\":{\"d\":{\"dataset\":\"web\",\"seed\":0}}}", run);
	canonical(LIVE "data: {d: {dataset: web, by_length: false}}\n", want);
	refuse(LIVE "data: {d: {dataset: web, by_length: true}}\n", PTC_EINVAL,
	       "job.yaml:6: by_length needs a model:, from which the planner says what a sample costs");
	refuse(LIVE "data: {d: {dataset: web, by_length: 3}}\n", PTC_EINVAL, "unknown by_length \"3\"");
	refuse(LIVE "data: []\n", PTC_EINVAL, "job.yaml:6: data is a map of 1 to 16 names");
	refuse(LIVE "data: {d: web}\n", PTC_EINVAL, "job.yaml:6: data is not a map");
	refuse(LIVE "data: {d: {}}\n", PTC_EINVAL, "job.yaml:6: data names no \"dataset\"");
	refuse(LIVE "data: {d/e: {dataset: x}}\n", PTC_EINVAL, "job.yaml:6: \"d/e\" cannot be a name of data");
	refuse(LIVE "data: {d: {dataset: X}}\n", PTC_EINVAL, "job.yaml:6: \"X\" cannot be the name of a dataset");
	refuse(LIVE "data: {d: {dataset: x, weight: 2}}\n", PTC_EINVAL, "unknown key \"weight\" in data");
	refuse(LIVE "data: {d: {dataset: x, source: 12}}\n", PTC_EINVAL, "source is 32 hex digits");
	refuse(LIVE "data: {d: {dataset: x, shuffle: maybe}}\n", PTC_EINVAL, "unknown shuffle \"maybe\"");
	refuse(LIVE "data: {d: {dataset: x, shuffle: false, block: 4}}\n", PTC_EINVAL, "block says how to shuffle");
	refuse(LIVE "data: {d: {mix: [{dataset: x}]}}\n", PTC_EINVAL, "mix is a list of 2 to 64 datasets");
	refuse(LIVE "data: {d: {mix: [{dataset: x}, {dataset: y, weight: 0}]}}\n", PTC_EINVAL, "weight must be");
	refuse(LIVE "data: {d: {dataset: x, mix: [{dataset: x}, {dataset: y}]}}\n", PTC_EINVAL,
	       "unknown key \"dataset\" in data");
}

static void test_blobs(void **state)
{
	static const char head[] = "{\"version\":1,\"name\":\"j\",\"run\":{\"argv\":[\"a\"],\"cwd\":\"/\"},";
	char text[512];

	canonical(LIVE "blobs:\n- {match: 'rng*', state: replicate}\n- {state: carry, match: 'l?der/[0-9]'}\n"
		       "- {match: '\"', state: reset}\n- {match: '*', state: refuse}\n",
		  "{\"version\":1,\"name\":\"live\",\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"},"
		  "\"blobs\":[{\"match\":\"rng*\",\"state\":\"replicate\"},{\"match\":\"l?der/"
		  "[0-9]\",\"state\":\"carry\"},"
		  "{\"match\":\"\\\"\",\"state\":\"reset\"},{\"match\":\"*\",\"state\":\"refuse\"}]}");
	refuse(HEAD RULES "blobs: [{match: a, state: reset}]\n", PTC_EINVAL,
	       "job.yaml:8: \"blobs\" is for jobs that run something");
	refuse(LIVE "blobs: {a: reset}\n", PTC_EINVAL, "job.yaml:6: blobs is a list of 1 to 256 rules");
	refuse(LIVE "blobs: []\n", PTC_EINVAL, "job.yaml:6: blobs is a list");
	refuse(LIVE "blobs: [rng]\n", PTC_EINVAL, "job.yaml:6: a rule of blobs is not a map");
	refuse(LIVE "blobs: [{match: a, stat: reset}]\n", PTC_EINVAL, "did you mean \"state\"?");
	refuse(LIVE "blobs: [{state: reset}]\n", PTC_EINVAL, "a rule of blobs has no \"match\"");
	refuse(LIVE "blobs: [{match: a}]\n", PTC_EINVAL, "has no \"state\": carry, replicate, reset or refuse");
	refuse(LIVE "blobs: [{match: 'a[', state: reset}]\n", PTC_EINVAL, "\"a[\" is not a pattern for names of blobs");
	refuse(LIVE "blobs:\n- {match: a, state: max}\n", PTC_EINVAL,
	       "job.yaml:7: state max is not for blobs: a blob is bytes that only the program can read");
	refuse(LIVE "blobs: [{match: a, state: derive}]\n", PTC_EINVAL, "state derive is not for blobs");
	refuse(LIVE "blobs: [{match: a, state: {derive: b}}]\n", PTC_EINVAL, "state derive is not for blobs");
	refuse(LIVE "blobs: [{match: a, state: {replicate: {dp: 0}}}]\n", PTC_EINVAL,
	       "replicate takes no axis for blobs");
	refuse(LIVE "blobs: [{match: a, state: rest}]\n", PTC_EINVAL, "did you mean \"reset\"?");
	refuse(LIVE "blobs:\n- {match: 'a*', state: reset}\n- {match: ab, state: carry}\n", PTC_EINVAL,
	       "job.yaml:8: rule \"ab\" of blobs never applies: the earlier rule \"a*\" takes every name that it "
	       "matches");
	snprintf(text, sizeof text, "%s\"blobs\":[{\"match\":\"a\",\"state\":\"max\"}]}", head);
	refuse_json(text, PTC_EINVAL, "state max is not for blobs");
}

static void test_files(void **state)
{
	static const char run[] =
		"{\"version\":1,\"name\":\"live\",\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"}";
	char want[512];

	snprintf(want, sizeof want, "%s,\"files\":{\"group\":0}}", run);
	canonical(LIVE "files: {group: 0}\n", want);
	snprintf(want, sizeof want,
		 "%s,\"data\":{\"d\":{\"dataset\":\"web\",\"seed\":0}},\"files\":{\"group\":4294967294}}", run);
	canonical(LIVE "files: {group: 4294967294}\ndata: {d: {dataset: web}}\n", want);
	snprintf(want, sizeof want, "%s,\"files\":{\"group\":\"domain users\"}}", run); /* not looked up yet */
	canonical(LIVE "files: {group: domain users}\n", want);
	snprintf(want, sizeof want, "%s,\"files\":{\"group\":\"100\"}}", run); /* a name, said so */
	canonical(LIVE "files: {group: \"100\"}\n", want);
	snprintf(want, sizeof want, "%s,\"files\":{\"carry\":{\"a.json\":\"{\\\"b\\\": 1}\\u000a\",\"z\":\"\"}}}", run);
	canonical(LIVE "files: {carry: {z: '', a.json: \"{\\\"b\\\": 1}\\n\"}}\n", want);
	snprintf(want, sizeof want, "%s,\"files\":{\"group\":7,\"carry\":{\"a\":\"b\"}}}", run);
	canonical(LIVE "files: {group: 7, carry: {a: b}}\n", want);
	refuse(LIVE "files: {carry: {}}\n", PTC_EINVAL, "job.yaml:6: carry has 0 files");
	refuse(LIVE "files: {carry: x}\n", PTC_EINVAL, "job.yaml:6: carry is a list of paths");
	refuse(LIVE "files: {carry: {a: [b]}}\n", PTC_EINVAL, "\"a\" is not text");
	refuse(LIVE "files: {carry: {gen-1: b}}\n", PTC_EINVAL, "under another one");
	refuse(LIVE "files: {carry: {a/b: c}}\n", PTC_EINVAL, "cannot be the name of a carried file");
	refuse(LIVE "files: {carry: [a]}\n", PTC_EINVAL, "no file may be named here");
	refuse(LIVE "files: staff\n", PTC_EINVAL, "job.yaml:6: files is not a map");
	refuse(LIVE "files: {}\n", PTC_EINVAL, "job.yaml:6: files has no \"group\"");
	refuse(LIVE "files: {user: x}\n", PTC_EINVAL, "unknown key \"user\" in files");
	refuse(LIVE "files: {group: 4294967295}\n", PTC_EINVAL, "group must be in 0..4294967294");
	refuse(LIVE "files: {group: [a]}\n", PTC_EINVAL, "job.yaml:6: group");
	refuse(LIVE "files: {group: \"\"}\n", PTC_EINVAL, "group");
	refuse(LIVE "files: {group: \"a:b\"}\n", PTC_EINVAL, "\"a:b\" cannot be the name of a group");
}

/* The job of a text, and what its canonical JSON makes of it, whose JSON is the same. */
static void there_and_back(const char *yaml, struct ptc_job_desc *ret_job, struct ptc_job_desc *ret_again)
{
	struct ptc_error err = PTC_ERROR_INIT;
	char *json = NULL, *other = NULL;
	size_t len = 0;

	if (decode(yaml, ret_job, &err))
		fail_msg("%s", err.text);
	assert_int_equal(ptc_job_to_json(ret_job, &json, &len, &err), 0);
	assert_int_equal(ptc_job_from_json(json, len, ret_again, &err), 0);
	assert_int_equal(ptc_job_to_json(ret_again, &other, &len, &err), 0);
	assert_string_equal(json, other);
	ptc_free(json);
	ptc_free(other);
}

static void same_hash(const char *yaml, const char *other)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc a = { 0 }, b = { 0 };
	char one[33], two[33];

	assert_int_equal(decode(yaml, &a, &err), 0);
	assert_int_equal(decode(other, &b, &err), 0);
	assert_int_equal(ptc_job_hash(&a, one, &err), 0);
	assert_int_equal(ptc_job_hash(&b, two, &err), 0);
	assert_string_equal(one, two);
	ptc_job_desc_done(&a);
	ptc_job_desc_done(&b);
}

/* The lines of all clashes, in their order; "": there are none. */
static const char *clashes(const char *yaml, uint64_t lease_ttl_ms)
{
	static char all[2000];
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };
	size_t len = 0;

	if (decode(yaml, &job, &err))
		fail_msg("%s", err.text);
	all[0] = '\0';
	for (size_t i = 0; ptc_job_timeout_clash(&job, lease_ttl_ms, i, all + len, sizeof all - len); i++) {
		len += strlen(all + len);
		all[len++] = '\n';
		all[len] = '\0';
	}
	ptc_job_desc_done(&job);
	return all;
}

static void test_timeouts(void **state)
{
	(void)state;
	assert_string_equal(clashes(HEAD "rules: [{match: '*'}]\n", 5000), "");
	assert_string_equal(clashes(LIVE "elastic: {on_hang: recover}\n", 5000), "");
	assert_string_equal(clashes(LIVE "  boundary_timeout: 5m\nelastic: {on_hang: recover}\n", 5000),
			    "boundary_timeout (5m) is not longer than hang_after (10m), so a switch that waits for a "
			    "rank that hangs is aborted before `on_hang: recover` acts (docs/timeouts.md)\n");
	assert_string_equal(clashes(LIVE "  boundary_timeout: 5m\nelastic: {on_hang: report}\n", 5000), "");
	assert_string_equal(clashes(LIVE "  boundary_timeout: 5m\nelastic: {on_hang: recover, hang_after: 4m}\n", 5000),
			    "");
	assert_string_equal(clashes(LIVE "elastic: {on_hang: report, hang_after: 5s}\n", 5000),
			    "hang_after (5s) is not longer than lease_ttl (5s), so ranks that wait for a lost node "
			    "count as hanging before the node counts as down (docs/timeouts.md)\n");
	assert_string_equal(clashes(LIVE "elastic: {on_hang: report, hang_after: 6s}\n", 5000), "");
	assert_string_equal(clashes(LIVE "elastic: {on_hang: report, hang_after: 1s}\n", 0), "");
	assert_string_equal(clashes(LIVE "  grace: 2m\n  build_timeout: 90s\n", 5000),
			    "build_timeout (90s) is not longer than grace (2m), so a switch gives up new ranks before "
			    "old ones that do not end by themselves are killed (docs/timeouts.md)\n");
	assert_non_null(strstr(clashes(LIVE "  grace: 2m\n  build_timeout: 90s\n  boundary_timeout: 1s\n"
					    "elastic: {on_hang: recover, hang_after: 2s}\n",
				       3000),
			       "(2s), so a switch"));
}

/* What the planner is told is carried, in a form that comes back the same. */
static void test_planning(void **state)
{
	struct ptc_job_desc job = { 0 }, again = { 0 };

	there_and_back(HEAD "rules: [{match: '*'}]\n"
			    "model: {layers: 2, hidden: 64, glu: true}\n"
			    "space: {global_batch: 8, tp: [1, 2], memory: {reserve_bytes: 4e9}}\n"
			    "on_link_change: replan\n"
			    "warning: 25s\n",
		       &job, &again);
	assert_string_equal(job.model, "{\"layers\":2,\"hidden\":64,\"glu\":\"true\"}");
	assert_string_equal(job.space, "{\"global_batch\":8,\"tp\":[1,2],\"memory\":{\"reserve_bytes\":\"4e9\"}}");
	assert_string_equal(job.model, again.model);
	assert_string_equal(job.space, again.space);
	assert_true(job.replan_on_links && again.replan_on_links);
	assert_true(job.warning_ms == 25000 && again.warning_ms == 25000);
	ptc_job_desc_done(&job);
	ptc_job_desc_done(&again);
	refuse(HEAD "rules: [{match: '*'}]\non_link_change: replan\n", PTC_EINVAL, "replan needs a model:");
	refuse(HEAD "rules: [{match: '*'}]\nwarning: 8d\n", PTC_EINVAL, "warning must be in");
	refuse(HEAD "rules: [{match: '*'}]\nwarning: 0s\n", PTC_EINVAL, "warning must be in");
	refuse(HEAD "rules: [{match: '*'}]\non_link_change: run\n", PTC_EINVAL, "on_link_change");
	refuse(HEAD "rules: [{match: '*'}]\nmodel: [1]\n", PTC_EINVAL, "job.yaml:8: model is not a map");
	refuse(HEAD "rules: [{match: '*'}]\nmodel: {config: a.json}\n", PTC_EINVAL,
	       "job.yaml:8: no file may be named here; write the model out");
}

/* On how many nodes everything is kept: nothing said is one, and one is nothing said. */
static void test_copies(void **state)
{
	static const char *const shares[] = { "5", "0%", "101%", "1000%", "5%%", "5 %", "-5%", "'%'", "half", "5.5%" };
	char yaml[256];
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 }, again = { 0 };

	there_and_back(HEAD "rules: [{match: '*'}]\ncopies: {count: 3, across: rack}\n", &job, &again);
	assert_int_equal(job.copies.count, 3);
	assert_true(job.copies.racks);
	assert_int_equal(again.copies.count, 3);
	assert_true(again.copies.racks);
	ptc_job_desc_done(&job);
	ptc_job_desc_done(&again);
	same_hash(HEAD "rules: [{match: '*'}]\ncopies: {count: 1}\n", HEAD "rules: [{match: '*'}]\n");
	assert_int_equal(decode(HEAD "rules: [{match: '*'}]\n", &again, &err), 0);
	assert_int_equal(again.copies.count, 1);
	ptc_job_desc_done(&again);
	canonical(LIVE "copies: {count: 2, every: step}\n",
		  "{\"version\":1,\"name\":\"live\",\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"},"
		  "\"snapshot_every\":1,\"copies\":{\"count\":2,\"every\":\"step\"}}");
	canonical(LIVE "snapshot_every: 1\ncopies: {budget: 100%, count: 2, every: step}\n",
		  "{\"version\":1,\"name\":\"live\",\"run\":{\"argv\":[\"python3\",\"train.py\"],\"cwd\":\"/data\"},"
		  "\"snapshot_every\":1,\"copies\":{\"count\":2,\"every\":\"step\",\"budget\":\"100%\"}}");
	assert_int_equal(decode(LIVE "copies: {count: 2, every: step}\n", &job, &err), 0);
	assert_true(job.copies.steps);
	assert_int_equal(job.copies.budget, 10);
	ptc_job_desc_done(&job);
	same_hash(LIVE "copies: {count: 2, every: step, budget: 10%}\n", LIVE "copies: {count: 2, every: step}\n");
	same_hash(LIVE "copies: {count: 2, every: snapshot}\n", LIVE "copies: {count: 2}\n");
	refuse(LIVE "copies: {count: 2, budget: 5%}\n", PTC_EINVAL, "goes with every: step");
	refuse(LIVE "copies: {count: 1, every: step}\n", PTC_EINVAL, "needs a count of 2 or more");
	refuse(LIVE "copies: {count: 2, every: step}\nsnapshot_every: 2\n", PTC_EINVAL, "leave out snapshot_every");
	refuse(HEAD "rules: [{match: '*'}]\ncopies: {count: 2, every: step}\n", PTC_EINVAL, "for jobs with \"run\"");
	refuse(LIVE "copies: {count: 2, every: steps}\n", PTC_EINVAL, "every");
	for (size_t i = 0; i < PTC_ARRAY_LEN(shares); i++) {
		snprintf(yaml, sizeof yaml, LIVE "copies: {count: 2, every: step, budget: %s}\n", shares[i]);
		refuse(yaml, PTC_EINVAL, "from 1% to 100%");
	}
	refuse(HEAD "rules: [{match: '*'}]\ncopies: 2\n", PTC_EINVAL, "job.yaml:8: copies is not a map");
	refuse(HEAD "rules: [{match: '*'}]\ncopies: {across: rack}\n", PTC_EINVAL, "copies has no \"count\"");
	refuse(HEAD "rules: [{match: '*'}]\ncopies: {count: 0}\n", PTC_EINVAL, "job.yaml:8: count");
	refuse(HEAD "rules: [{match: '*'}]\ncopies: {count: 17}\n", PTC_EINVAL, "job.yaml:8: count");
	refuse(HEAD "rules: [{match: '*'}]\ncopies: {count: 2, across: room}\n", PTC_EINVAL, "across");
	refuse(HEAD "rules: [{match: '*'}]\ncopies: {cuont: 2}\n", PTC_EINVAL, "did you mean \"count\"?");
}

/* Checkpoints that are written by themselves. */
static void test_archive(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 }, again = { 0 };

	there_and_back(HEAD "rules: [{match: '*'}]\narchive: {dir: /a b, every: 2h, keep: 5, rate: 10MiB}\n", &job,
		       &again);
	assert_string_equal(again.archive.dir, "/a b");
	assert_int_equal(again.archive.every_ms, 7200000);
	assert_int_equal(again.archive.keep, 5);
	assert_int_equal(again.archive.rate, 10 << 20);
	ptc_job_desc_done(&job);
	ptc_job_desc_done(&again);
	assert_int_equal(decode(HEAD "rules: [{match: '*'}]\narchive: {dir: /a}\n", &job, &err), 0);
	assert_int_equal(job.archive.keep, 3);
	assert_int_equal(job.archive.every_ms, 0);
	ptc_job_desc_done(&job);
	refuse(HEAD "rules: [{match: '*'}]\narchive: /a\n", PTC_EINVAL, "job.yaml:8: archive is not a map");
	refuse(HEAD "rules: [{match: '*'}]\narchive: {keep: 2}\n", PTC_EINVAL, "archive has no \"dir\"");
	refuse(HEAD "rules: [{match: '*'}]\narchive: {dir: a}\n", PTC_EINVAL, "an absolute path");
	refuse(HEAD "rules: [{match: '*'}]\narchive: {dir: /a, keep: 0}\n", PTC_EINVAL, "job.yaml:8: keep");
	refuse(HEAD "rules: [{match: '*'}]\narchive: {dir: /a, every: 2}\n", PTC_EINVAL, "every");
	refuse(HEAD "rules: [{match: '*'}]\narchive: {dir: /a, evry: 2h}\n", PTC_EINVAL, "did you mean \"every\"?");
}

/* What becomes of ranks that hang, and of those that are slow. Canonical JSON has what differs from the defaults, and
 * nothing without on_hang (on_straggler). */
static void test_hang(void **state)
{
	static const struct {
		const char *yaml, *json;
		struct ptc_job_elastic want;
	} k[] = {
		{ "elastic: {on_hang: report}\n",
		  ",\"elastic\":{\"on_hang\":\"report\"}",
		  { .on_hang = PTC_JOB_HANG_REPORT } },
		{ "elastic: {on_hang: recover, hang_after: 90s, hang_steps: 1, max_restarts: 2}\n",
		  ",\"elastic\":{\"max_restarts\":2,\"on_hang\":\"recover\",\"hang_after\":\"90000ms\",\"hang_steps\":"
		  "1}",
		  { .on_hang = PTC_JOB_HANG_RECOVER, .hang_after_ms = 90000, .hang_steps = 1, .max_restarts = 2 } },
		{ "elastic: {min_gpus: 2, on_hang: recover}\n",
		  ",\"elastic\":{\"min_gpus\":2,\"on_hang\":\"recover\"}",
		  { .min_gpus = 2, .on_hang = PTC_JOB_HANG_RECOVER } },
		{ "elastic: {min_gpus: 2}\n", ",\"elastic\":{\"min_gpus\":2}", { .min_gpus = 2 } },
		{ "elastic: {on_straggler: report}\n",
		  ",\"elastic\":{\"on_straggler\":\"report\"}",
		  { .on_straggler = PTC_JOB_STRAGGLER_REPORT } },
		{ "elastic: {on_difference: primary}\n",
		  ",\"elastic\":{\"on_difference\":\"primary\"}",
		  { .on_difference = PTC_JOB_DIFFERENCE_PRIMARY } },
		{ "elastic: {min_gpus: 2, on_difference: report}\n",
		  ",\"elastic\":{\"min_gpus\":2}",
		  { .min_gpus = 2 } },
		{ "elastic: {straggler_drains: 1, on_straggler: drain, straggler_backoff: 20m}\n",
		  ",\"elastic\":{\"on_straggler\":\"drain\",\"straggler_backoff\":\"1200000ms\",\"straggler_drains\":"
		  "1}",
		  { .on_straggler = PTC_JOB_STRAGGLER_DRAIN, .straggler_backoff_ms = 1200000, .straggler_drains = 1 } },
		{ "elastic: {straggler_steps: 20, on_straggler: report, straggler_percent: 100}\n",
		  ",\"elastic\":{\"on_straggler\":\"report\",\"straggler_percent\":100,\"straggler_steps\":20}",
		  { .on_straggler = PTC_JOB_STRAGGLER_REPORT, .straggler_percent = 100, .straggler_steps = 20 } },
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(k); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_job_desc job = { 0 }, again = { 0 };
		char yaml[512], *json = NULL;
		size_t len = 0;

		snprintf(yaml, sizeof yaml, "%s%s", LIVE, k[i].yaml);
		assert_int_equal(decode(yaml, &job, &err), 0);
		assert_int_equal(ptc_job_to_json(&job, &json, &len, &err), 0);
		assert_non_null(strstr(json, k[i].json));
		assert_int_equal(ptc_job_from_json(json, len, &again, &err), 0);
		for (int n = 0; n < 2; n++) {
			const struct ptc_job_elastic *e = n ? &again.elastic : &job.elastic;

			assert_int_equal(e->on_hang, k[i].want.on_hang);
			assert_true(e->hang_after_ms == k[i].want.hang_after_ms);
			assert_int_equal(e->hang_steps, k[i].want.hang_steps);
			assert_int_equal(e->max_restarts, k[i].want.max_restarts);
			assert_int_equal(e->min_gpus, k[i].want.min_gpus);
			assert_int_equal(e->on_straggler, k[i].want.on_straggler);
			assert_int_equal(e->on_difference, k[i].want.on_difference);
			assert_int_equal(e->straggler_percent, k[i].want.straggler_percent);
			assert_int_equal(e->straggler_steps, k[i].want.straggler_steps);
			assert_true(e->straggler_backoff_ms == k[i].want.straggler_backoff_ms);
			assert_int_equal(e->straggler_drains, k[i].want.straggler_drains);
		}
		ptc_free(json);
		ptc_job_desc_done(&job);
		ptc_job_desc_done(&again);
	}
}

static void test_straggler_refused(void **state)
{
	refuse(LIVE "elastic: {standby: build}\n", PTC_EINVAL, "job.yaml:6: unknown standby \"build\"");
	refuse(LIVE "elastic: {on_difference: drain}\n", PTC_EINVAL, "job.yaml:6: unknown on_difference \"drain\"");
	refuse(LIVE "elastic: {on_straggler: leave}\n", PTC_EINVAL, "job.yaml:6: unknown on_straggler \"leave\"");
	refuse(LIVE "elastic: {on_straggler: report, straggler_drains: 3}\n", PTC_EINVAL,
	       "job.yaml:6: straggler_drains says nothing without on_straggler: drain");
	refuse(LIVE "elastic: {straggler_backoff: 3h, on_straggler: report}\n", PTC_EINVAL,
	       "job.yaml:6: straggler_backoff says nothing without on_straggler: drain");
	refuse(LIVE "elastic: {on_straggler: drain, straggler_drains: 0}\n", PTC_EINVAL,
	       "job.yaml:6: straggler_drains must be in 1..100, not 0");
	refuse(LIVE "elastic: {on_straggler: drain, straggler_backoff: 999ms}\n", PTC_EINVAL, "straggler_backoff");
	refuse(LIVE "elastic: {on_straggler: report, straggler_percent: 4}\n", PTC_EINVAL,
	       "job.yaml:6: straggler_percent must be in 5..10000, not 4");
	refuse(LIVE "elastic: {straggler_steps: 7}\n", PTC_EINVAL,
	       "job.yaml:6: straggler_steps says nothing without on_straggler; write on_straggler: report, or drain");
}

/* Snapshots that stay beside the committed one. */
static void test_keep(void **state)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 }, again = { 0 };

	there_and_back(LIVE "keep: {last: 3, every: 500}\n", &job, &again);
	assert_int_equal(again.keep.last, 3);
	assert_int_equal(again.keep.every, 500);
	ptc_job_desc_done(&job);
	ptc_job_desc_done(&again);
	same_hash(LIVE "keep: {last: 1}\n", LIVE);
	assert_int_equal(decode(LIVE, &again, &err), 0);
	assert_int_equal(again.keep.last, 1);
	ptc_job_desc_done(&again);
	refuse(LIVE "keep: 2\n", PTC_EINVAL, "keep is not a map");
	refuse(LIVE "keep: {last: 0}\n", PTC_EINVAL, "last");
	refuse(LIVE "keep: {last: 65}\n", PTC_EINVAL, "last");
	refuse(LIVE "keep: {every: 0}\n", PTC_EINVAL, "every");
	refuse(LIVE "keep: {lst: 2}\n", PTC_EINVAL, "did you mean \"last\"?");
	refuse(HEAD "rules: [{match: '*'}]\nkeep: {last: 2}\n", PTC_EINVAL, "keep is for jobs with \"run\"");
}

static void test_run_refused(void **state)
{
	refuse(LIVE "  agv: [a]\n", PTC_EINVAL, "job.yaml:6: unknown key \"agv\" in run; did you mean \"argv\"?");
	refuse(LIVE "mde: rebuild\n", PTC_EINVAL, "job.yaml:6: unknown key \"mde\" in the job; did you mean \"mode\"?");
	refuse("version: 1\nname: a\nrun: train.py\n", PTC_EINVAL, "job.yaml:3: run is not a map");
	refuse("version: 1\nname: a\nrun: {cwd: /}\n", PTC_EINVAL, "job.yaml:3: run has no \"argv\"");
	refuse("version: 1\nname: a\nrun:\n  cwd: /\n  argv: train.py\n", PTC_EINVAL,
	       "job.yaml:5: argv must be a list");
	refuse("version: 1\nname: a\nrun:\n  cwd: /\n  argv: []\n", PTC_EINVAL, "job.yaml:5: argv must be a list");
	refuse("version: 1\nname: a\nrun:\n  cwd: /\n  argv: ['']\n", PTC_EINVAL, "job.yaml:5: argv names no program");
	refuse("version: 1\nname: a\nrun:\n  cwd: /\n  argv: [a, [b]]\n", PTC_EINVAL,
	       "job.yaml:5: an entry of argv must be a text");
	refuse("version: 1\nname: a\nrun: {argv: [a]}\n", PTC_EINVAL,
	       "job.yaml:3: run has no \"cwd\""); /* no submitter */
	refuse("version: 1\nname: a\nrun: {argv: [a], cwd: b}\n", PTC_EINVAL,
	       "job.yaml:3: cwd must be an absolute path");
	refuse("version: 1\nname: a\nrun: {argv: [a], cwd: ''}\n", PTC_EINVAL, "job.yaml:3: cwd must be a word");
	refuse(LIVE "  env: [A=b]\n", PTC_EINVAL, "job.yaml:6: env must be a map");
	refuse(LIVE "  env:\n    A=: b\n", PTC_EINVAL, "job.yaml:7: \"A=\" cannot be a variable's name");
	refuse(LIVE "  env: {'': b}\n", PTC_EINVAL, "job.yaml:6: \"\" cannot be a variable's name");
	refuse(LIVE "  env: {A: [b]}\n", PTC_EINVAL, "job.yaml:6: a variable must be a text");
	refuse(LIVE "  env: {A: b, A: c}\n", PTC_EINVAL, "job.yaml:6: key \"A\" appears twice");
	refuse(LIVE "  grace: 30\n", PTC_EINVAL, "job.yaml:6: grace: \"30\" is not a duration");
	refuse(LIVE "  grace: 25h\n", PTC_EINVAL, "job.yaml:6: grace must be in 0..1d, not 25h");
	refuse(LIVE "  build_timeout: 8d\n", PTC_EINVAL, "job.yaml:6: build_timeout must be in 1s..7d, not 8d");
	refuse(LIVE "  boundary_timeout: 0\n", PTC_EINVAL, "job.yaml:6: boundary_timeout must be in 1s..7d, not 0");
	refuse(LIVE "  log_bytes: 1KiB\n", PTC_EINVAL, "job.yaml:6: log_bytes must be in 64KiB..1TiB, not 1KiB");
	refuse(LIVE "  log_bytes: lots\n", PTC_EINVAL, "job.yaml:6: log_bytes: \"lots\" is not a size");
	refuse(LIVE "mode: keep\n", PTC_EINVAL, "job.yaml:6: mode keep is not supported yet; write restart or rebuild");
	refuse(LIVE "mode: rebild\n", PTC_EINVAL, "job.yaml:6: unknown mode \"rebild\"; did you mean \"rebuild\"?");
	refuse(HEAD RULES "copy: async\n", PTC_EINVAL, "job.yaml:8: \"copy\" is for jobs that run something");
	refuse(LIVE "copy: [async]\n", PTC_EINVAL, "job.yaml:6: copy must be a word");
	refuse(LIVE "copy: slow\n", PTC_EINVAL, "job.yaml:6: unknown copy \"slow\"");
	refuse(LIVE "elastic: {min_gpus: 0}\n", PTC_EINVAL, "job.yaml:6: min_gpus must be in 1..");
	refuse(LIVE "elastic: {min_gpus: 4, max_gpus: 2}\n", PTC_EINVAL,
	       "job.yaml:6: max_gpus (2) is less than min_gpus (4)");
	refuse(LIVE "elastic: {on_join: shrink}\n", PTC_EINVAL, "job.yaml:6: unknown on_join \"shrink\"");
	refuse(LIVE "elastic: {join_after: 0s}\n", PTC_EINVAL, "job.yaml:6: join_after");
	refuse(LIVE "elastic: {on_failure: pray}\n", PTC_EINVAL, "job.yaml:6: unknown on_failure \"pray\"");
	refuse(LIVE "elastic: {max_restarts: 1001}\n", PTC_EINVAL, "job.yaml:6: max_restarts must be in 0..1000");
	refuse(LIVE "elastic: {on_hang: kill}\n", PTC_EINVAL, "job.yaml:6: unknown on_hang \"kill\"");
	refuse(LIVE "elastic: {on_hang: report, hang_after: 0s}\n", PTC_EINVAL,
	       "job.yaml:6: hang_after must be in 1s..7d, not 0s");
	refuse(LIVE "elastic: {hang_after: 10m}\n", PTC_EINVAL,
	       "job.yaml:6: hang_after says nothing without on_hang; write on_hang: report, or recover");
	refuse(LIVE "elastic: {hang_steps: 3}\n", PTC_EINVAL, "job.yaml:6: hang_steps says nothing without on_hang");
	refuse(LIVE "elastic: 3\n", PTC_EINVAL, "job.yaml:6: elastic is not a map");
	refuse(HEAD RULES "elastic: {min_gpus: 1}\n", PTC_EINVAL, "job.yaml:8: \"elastic\" is for jobs that run");
	refuse(LIVE "share_devices: maybe\n", PTC_EINVAL, "job.yaml:6: unknown share_devices \"maybe\"");
	refuse(HEAD RULES "share_devices: true\n", PTC_EINVAL, "job.yaml:8: \"share_devices\" is for jobs that run");
	refuse(LIVE "snapshot_every: 10m\n", PTC_EINVAL, "job.yaml:6: snapshot_every must be a whole number");
	refuse(LIVE "seed: -1\n", PTC_EINVAL, "job.yaml:6: seed must be a whole number");
	refuse(LIVE "seed: x\n", PTC_EINVAL, "job.yaml:6: seed must be a whole number");
	refuse(HEAD RULES "seed: 3\n", PTC_EINVAL, "job.yaml:8: \"seed\" is for jobs that run");
	refuse(HEAD RULES "mode: restart\n", PTC_EINVAL, "job.yaml:8: \"mode\" is for jobs that run something");
	refuse(HEAD RULES "snapshot_every: 3\n", PTC_EINVAL, "job.yaml:8: \"snapshot_every\" is for jobs that run");
	refuse(LIVE "rules: bert\n", PTC_EINVAL, "of a live job without \"tensors\"");
	refuse(LIVE "fields: {a: {}}\n", PTC_EINVAL, "no \"tensors\"");
	refuse(LIVE TENSORS, PTC_EINVAL, "no \"rules\"");
	refuse_json("{\"version\":1,\"name\":\"j\",\"run\":{\"argv\":[\"a\"]}}", PTC_EINVAL,
		    "spec: run has no \"cwd\"");
	refuse_json("{\"version\":1,\"name\":\"j\",\"run\":{\"argv\":[1],\"cwd\":\"/\"}}", PTC_EINVAL,
		    "must be a text");
	refuse_json("{\"version\":1,\"name\":\"j\",\"run\":{\"argv\":[\"a\\u0000b\"],\"cwd\":\"/\"}}", PTC_EINVAL,
		    "u0000");
}

/* head, n times item with its number, tail; ptc_free it. */
static char *repeat(const char *head, const char *item, int n, const char *tail)
{
	struct ptc_buf b = PTC_BUF_INIT;

	ptc_buf_puts(&b, head);
	for (int i = 0; i < n; i++)
		ptc_buf_printf(&b, item, i);
	ptc_buf_puts(&b, tail);
	return ptc_buf_steal(&b, NULL);
}

static void test_run_bounds(void **state)
{
	static const struct {
		const char *head, *item, *tail, *error;
		int most;
	} cases[] = {
		{ "version: 1\nname: a\nrun:\n  cwd: /\n  argv: [a", ",%d", "]\n", "argv has 4097 entries", 4095 },
		/* 64 digits and a NUL each; before them "a" and its NUL */
		{ "version: 1\nname: a\nrun:\n  cwd: /\n  argv: [a", ",%064d", "]\n", "argv has more than 131072 bytes",
		  (131072 - 2) / 65 },
		{ LIVE "  env: {", "V%d: ,", "}\n", "4096 keys", 4096 },
		/* "V00000=", "x" and 120 digits, a NUL */
		{ LIVE "  env: {", "V%1$05d: x%1$0120d,", "}\n", "env has more than 262144 bytes",
		  262144 / (7 + 121 + 1) },
		{ "version: 1\nname: a\nrun:\n  argv: [a]\n  cwd: /xx", "%04d", "\n", "cwd has more than 4095 bytes",
		  1023 },
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		for (int more = 0; more < 2; more++) {
			char *yaml = repeat(cases[i].head, cases[i].item, cases[i].most + more, cases[i].tail);
			struct ptc_error err = PTC_ERROR_INIT;
			struct ptc_job_desc job = { 0 };

			assert_non_null(yaml);
			if (more)
				refuse(yaml, PTC_ELIMIT, cases[i].error);
			else if (decode(yaml, &job, &err))
				fail_msg("%zu: %s", i, err.text);
			ptc_job_desc_done(&job);
			ptc_free(yaml);
		}
	}
}

static struct ptc_job_desc submitted(const char *yaml, const char *dir, char *const *env)
{
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };

	if (ptc_job_from_yaml("job.yaml", yaml, strlen(yaml), dir, NULL, &job, &err) ||
	    ptc_job_resolve_run(&job, "/u/me", env, &err))
		fail_msg("%s", err.text);
	return job;
}

static void test_resolve_cwd(void **state)
{
	static const struct {
		const char *dir, *cwd, *want;
	} cases[] = {
		{ ".", NULL, "/u/me" },
		{ ".", ".", "/u/me" },
		{ "jobs", ".", "/u/me/jobs" },
		{ "jobs", "a//b/./", "/u/me/jobs/a/b" },
		{ "./jobs", "../x", "/u/me/jobs/../x" },
		{ "/etc/jobs", "x", "/etc/jobs/x" },
		{ "/etc/jobs", "/", "/" },
		{ "/etc/jobs", "//data//", "/data" },
		{ "/etc/jobs", NULL, "/u/me" },
	};
	char *env[] = { NULL };

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		char yaml[200];
		struct ptc_job_desc job;

		snprintf(yaml, sizeof(yaml), "version: 1\nname: a\nrun: {argv: [a]%s%s}\n",
			 cases[i].cwd ? ", cwd: " : "", cases[i].cwd ? cases[i].cwd : "");
		job = submitted(yaml, cases[i].dir, env);
		assert_string_equal(job.run.cwd, cases[i].want);
		ptc_job_desc_done(&job);
	}
}

static void test_resolve_env(void **state)
{
	char ours[] = "PATH=/bin", twice[] = "PATH=/usr/bin", ptc[] = "PTC_TOKEN=x", shell[] = "_=/bin/ptcctl",
	     pwd[] = "PWD=/u/me", ssh[] = "SSH_CONNECTION=1", rank[] = "RANK=3", ranks[] = "RANKS=3",
	     user[] = "A=theirs", odd[] = "noequals", none[] = "=x", utf[] = "NAME=\xc3\xbc", bad[] = "LATIN=\xfc",
	     longer[] = "AB=1";
	char *env[] = { ours, twice, ptc, shell, pwd, ssh, rank, ranks, user, odd, none, utf, longer, NULL };
	char *env_bad[] = { ours, bad, NULL };
	struct ptc_job_desc job = submitted(LIVE "  env: {A: ours, LATIN: x}\n", ".", env), state_only = { 0 };
	struct ptc_error err = PTC_ERROR_INIT;
	const char *want[] = { "A=ours", "AB=1", "LATIN=x", "NAME=\xc3\xbc", "PATH=/bin", "RANKS=3" };
	int64_t live;

	assert_int_equal(job.run.nenv, PTC_ARRAY_LEN(want));
	for (size_t i = 0; i < PTC_ARRAY_LEN(want); i++)
		assert_string_equal(job.run.env[i], want[i]);
	assert_null(job.run.env[PTC_ARRAY_LEN(want)]);
	assert_int_equal(ptc_job_resolve_run(&job, "/u/me", env_bad, &err), 0); /* the job says what it is */
	ptc_job_desc_done(&job);

	job = submitted(LIVE, ".", env);
	live = ptc_alloc_live();
	assert_int_equal(ptc_job_resolve_run(&job, "/u/me", env_bad, &err), PTC_EINVAL);
	assert_non_null(strstr(err.text, "the environment variable LATIN is not UTF-8"));
	assert_int_equal(ptc_alloc_live(), live);
	assert_int_equal(job.run.nenv, PTC_ARRAY_LEN(want) - 1); /* as it was: A of the environment, no LATIN */
	assert_string_equal(job.run.env[0], "A=theirs");
	ptc_job_desc_done(&job);

	assert_int_equal(decode(HEAD RULES, &state_only, &err), 0);
	assert_int_equal(ptc_job_resolve_run(&state_only, "/u/me", env_bad, &err), 0);
	assert_false(state_only.has_run);
	ptc_job_desc_done(&state_only);
}

static void test_resolve_bounds(void **state)
{
	static char *env[5000], text[5000][16];
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };

	for (int i = 0; i < 4097; i++) {
		snprintf(text[i], sizeof(text[i]), "V%d=", i);
		env[i] = text[i];
	}
	assert_int_equal(decode(LIVE, &job, &err), 0);
	assert_int_equal(ptc_job_resolve_run(&job, "/", env, &err), PTC_ELIMIT);
	assert_non_null(strstr(err.text, "more than 4096 variables"));
	env[4096] = NULL;
	assert_int_equal(ptc_job_resolve_run(&job, "/", env, &err), 0);
	assert_int_equal(job.run.nenv, 4096);
	ptc_job_desc_done(&job);
}

static void test_run_no_memory(void **state)
{
	static const char json[] =
		"{\"version\":1,\"name\":\"j\",\"run\":{\"argv\":[\"a\",\"b\"],\"cwd\":\"/\",\"env\":{\"A\":"
		"\"b\"},\"grace\":\"1s\"},\"mode\":\"rebuild\",\"blobs\":[{\"match\":"
		"\"a\",\"state\":\"reset\"}]}";
	char a[] = "B=c", *env[] = { a, NULL };
	int64_t live = ptc_alloc_live();
	int failures = 0, rc = PTC_ENOMEM;

	for (uint64_t at = 1; rc; at++) {
		struct ptc_job_desc job = { 0 };
		char *out = NULL;
		size_t n = 0;

		ptc_alloc_fail_at(at);
		rc = ptc_job_from_json(json, strlen(json), &job, NULL);
		if (!rc)
			rc = ptc_job_resolve_run(&job, "/x", env, NULL);
		if (!rc)
			rc = ptc_job_to_json(&job, &out, &n, NULL);
		ptc_alloc_fail_at(0);
		assert_true(!rc || rc == PTC_ENOMEM || rc == PTC_EINVAL); /* jansson blurs some */
		failures += rc != 0;
		ptc_job_desc_done(&job);
		ptc_free(out);
		assert_int_equal(ptc_alloc_live(), live);
	}
	assert_true(failures > 20);
}

/* Every key of rules, buffers and configurations that came later, in the canonical form and back. */
static void test_later_keys(void **state)
{
	static const char yaml[] =
		"version: 1\nname: a\ntensors:\n"
		"- {name: h.0.e.0, dtype: F32, shape: [8, 4]}\n- {name: h.0.e.1, dtype: F32, shape: [8, 4]}\n"
		"- {name: q, dtype: F32, shape: [8, 4]}\nfields: {m: {}}\n"
		"rules:\n"
		"- {match: q, split: [{axis: tp, dim: 0, blocks: {ratio: [2, 1, 1]}, interleave: 2}, {axis: dp, dim: "
		"0, "
		"kind: ceil}], fields: {m: {shard: flat}}}\n"
		"- {match: 'h.*', layer: 'h.{}.*', expert: {match: '*.e.{}', order: [1, 0]}, shard: {dim: 1}}\n"
		"buffers: {order: ['h.{}.*', q], reverse: true, align: 4, pad: 1, bucket: 9, unit: layer,\n"
		"  groups: [q, ['h.1.*', 'h.*']], bucket_per_dp: 7}\n"
		"gpus: {4: {dp: 4, ep: 2, zero: 3, shard: buffer, replicas: 2, vpp: 2, stages: [1, 0], experts: [1, "
		"0]}}\n";
	static const char want[] =
		"\"rules\":[{\"match\":\"q\",\"split\":[{\"axis\":\"tp\",\"dim\":0,\"kind\":\"even\",\"blocks\":{"
		"\"ratio\":[2,1,1]},"
		"\"interleave\":2},{\"axis\":\"dp\",\"dim\":0,\"kind\":\"ceil\"}],\"shard\":\"flat\",\"fields\":[\"m\"]"
		",\"state\":"
		"\"carry\"},{\"match\":\"q\",\"split\":[{\"axis\":\"tp\",\"dim\":0,\"kind\":\"even\",\"blocks\":{"
		"\"ratio\":[2,1,1]},"
		"\"interleave\":2},{\"axis\":\"dp\",\"dim\":0,\"kind\":\"ceil\"}],\"state\":\"carry\"},{\"match\":\"h.*"
		"\",\"layer\":"
		"\"h.{}.*\",\"expert\":{\"match\":\"*.e.{}\",\"order\":[1,0]},\"shard\":{\"dim\":1},\"state\":"
		"\"carry\"}],"
		"\"buffers\":{\"order\":[\"h.{}.*\",\"q\"],\"groups\":[[\"q\"],[\"h.1.*\",\"h.*\"]],\"align\":4,"
		"\"bucket\":9,"
		"\"bucket_per_dp\":7,\"reverse\":\"true\",\"unit\":"
		"\"layer\"},"
		"\"gpus\":{\"4\":\"dp=4,ep=2,zero=3,stages=1:0,vpp=2,replicas=2,shard=buffer,experts=1:0\"}}";
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };
	char *json = NULL, *again = NULL;
	size_t n = 0;

	if (decode(yaml, &job, &err))
		fail_msg("%s", err.text);
	assert_int_equal(ptc_job_to_json(&job, &json, &n, NULL), 0);
	assert_non_null(strstr(json, want));
	ptc_job_desc_done(&job);
	assert_int_equal(ptc_job_from_json(json, n, &job, NULL), 0);
	assert_int_equal(ptc_job_to_json(&job, &again, &n, NULL), 0);
	assert_string_equal(json, again);
	ptc_free(json);
	ptc_free(again);
	ptc_job_desc_done(&job);
}

/* Every key of a configuration may stand in a map of `gpus`, and means what it means in a text. */
static void test_config_maps(void **state)
{
	static const struct {
		const char *map, *want; /* want: the canonical form */
	} cases[] = {
		{ "4: {tp: 2, pp: 2}", "\"4\":\"tp=2,pp=2\"" },
		{ "4: {dp: 2, cp: 2, ep: 2, zero: 1}", "\"4\":\"dp=2,cp=2,ep=2,zero=1\"" },
		{ "2: {tp: 2, etp: 2}", "\"2\":\"tp=2,etp=2\"" },
		{ "4: {tp: 2, dp: 2, order: dp-tp-cp-ep-pp}", "\"4\":\"tp=2,dp=2,order=dp-tp-cp-ep-pp\"" },
		{ "2: {pp: 2, vpp: 2, stages: [1, 0, 0, 1]}", "\"2\":\"pp=2,stages=1:0:0:1,vpp=2\"" },
		{ "4: {dp: 4, zero: 3, shard: dim0, replicas: 2}", "\"4\":\"dp=4,zero=3,replicas=2,shard=dim0\"" },
		{ "2: {dp: 2, ep: 2, experts: [1, 0]}", "\"2\":\"dp=2,ep=2,experts=1:0\"" },
		{ "3: {dp: 3, micro_batch: 2, global_batch: 10, micro_steps: 1x3:2x1}",
		  "\"3\":\"dp=3,micro_batch=2,global_batch=10,micro_steps=1x3:2x1\"" },
		{ "2: {dp: 2, recompute: none/full}", "\"2\":\"dp=2,recompute=none/full\"" },
		{ "2: {pp: 2, schedule: zb1p}", "\"2\":\"pp=2,schedule=zb1p\"" },
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		ptc_auto_free char *yaml = ptc_asprintf(HEAD RULES "gpus: {%s}", cases[i].map);
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_job_desc job = { 0 };
		char *json = NULL;
		size_t n = 0;

		if (decode(yaml, &job, &err))
			fail_msg("%s: %s", cases[i].map, err.text);
		assert_int_equal(ptc_job_to_json(&job, &json, &n, NULL), 0);
		if (!strstr(json, cases[i].want))
			fail_msg("%s: %s", cases[i].map, json);
		ptc_free(json);
		ptc_job_desc_done(&job);
	}
	refuse(HEAD RULES "gpus: {3: {dp: 3, micro_batch: 2, global_batch: 10, micro_steps: 1x3}}", PTC_EINVAL,
	       "micro_steps is of 1 replicas, dp is 3");
	refuse(HEAD RULES "gpus: {3: {dp: 3, micro_batch: 2, global_batch: 10, micro_steps: 5}}", PTC_EINVAL,
	       "bad value in \"micro_steps=5\" (2x6:4x3: ");
	refuse(HEAD RULES "gpus: {3: {dp: 3, micro_batch: 2, global_batch: 10, micro_steps: [1, 1]}}", PTC_EINVAL,
	       "micro_steps must be");
}

/* What depends on the job's tensors is settled when the job is read: the canonical form has what came out. */
static void test_settled_rules(void **state)
{
#define SETTLED                                                                                                        \
	"version: 1\nname: a\ntensors:\n"                                                                              \
	"- {name: enc.0.w, dtype: F32, shape: [8]}\n- {name: enc.2.w, dtype: F32, shape: [8]}\n"                       \
	"- {name: dec.1.w, dtype: F32, shape: [8]}\n- {name: norm, dtype: F32, shape: [8]}\nfields: {m: {}}\n"
	static const struct {
		const char *rules, *want;
	} cases[] = {
		{ "[{match: 'dec.*', layer: {match: 'dec.{}.*', after: 'enc.{}.*'}}]",
		  "\"layer\":{\"match\":\"dec.{}.*\",\"offset\":3}" },
		{ "[{match: 'dec.*', layer: {match: 'dec.{}.*', after: 'gone.{}.*'}}]", "\"layer\":\"dec.{}.*\"" },
		{ "[{match: 'dec.*', layer: {match: 'dec.{}.*', offset: 4}}]",
		  "\"layer\":{\"match\":\"dec.{}.*\",\"offset\":4}" },
		{ "[{match: '*', layer: {with: 'enc.{}.*'}}]", "\"layer\":{\"at\":2}" },
		{ "[{match: '*', layer: {with: 'gone.{}.*'}}]", "\"layer\":{\"at\":0}" },
		{ "[{match: '*', layer: {at: 1}}]", "\"layer\":{\"at\":1}" },
		{ "[{match: norm, layer: ends, unless: 'enc.*'}, {match: '*', layer: first, when: 'dec.?.w'}]",
		  "\"rules\":[{\"match\":\"*\",\"layer\":\"first\",\"state\":\"carry\"}]" },
		{ "[{match: x, when: nothing, fields: {m: {layer: last}}}, {match: '*', unless: nothing}]",
		  "\"rules\":[{\"match\":\"*\",\"state\":\"carry\"}]" },
		{ "[{match: '*', split: {axis: tp, dim: 0, unit: 1}}]", "\"unit\":1" },
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		char yaml[1024];
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_job_desc job = { 0 };
		char *json = NULL, *again = NULL;
		size_t n = 0;

		snprintf(yaml, sizeof yaml, SETTLED "rules: %s\n", cases[i].rules);
		if (decode(yaml, &job, &err))
			fail_msg("%s: %s", cases[i].rules, err.text);
		assert_int_equal(ptc_job_to_json(&job, &json, &n, NULL), 0);
		if (!strstr(json, cases[i].want))
			fail_msg("%s: %s", cases[i].rules, json);
		ptc_job_desc_done(&job);
		assert_int_equal(ptc_job_from_json(json, n, &job, NULL), 0);
		assert_int_equal(ptc_job_to_json(&job, &again, &n, NULL), 0);
		assert_string_equal(json, again);
		ptc_free(json);
		ptc_free(again);
		ptc_job_desc_done(&job);
	}
#undef SETTLED
}

static void test_later_keys_refused(void **state)
{
#define SPLIT(s) HEAD "rules: [{match: a, split: " s "}]"
	refuse(SPLIT("[]"), PTC_EINVAL, "a list of 1 to 4");
	refuse(SPLIT("[{axis: none}, {axis: tp, dim: 0}]"), PTC_EINVAL, "axis none must be the only split");
	refuse(SPLIT("[{axis: tp, dim: 0}, {axis: tp, dim: 0}]"), PTC_EINVAL, "one axis twice");
	refuse(SPLIT("[{axis: tp, dim: 0}, {axis: ep, dim: 0}]"), PTC_EINVAL, "divide the ranks of tp, cp and dp anew");
	refuse(SPLIT("{axis: tp, dim: 0, interleave: 2}"), PTC_EINVAL, "need blocks");
	refuse(SPLIT("{axis: tp, dim: 0, blocks: {}}"), PTC_EINVAL, "no \"ratio\"");
	refuse(SPLIT("{axis: tp, dim: 0, blocks: {ratios: [1]}}"), PTC_EINVAL, "did you mean \"ratio\"");
	refuse(SPLIT("{axis: tp, dim: 0, permute: [0, 2]}"), PTC_EINVAL, "each number from 0 to 1 once");
	refuse(SPLIT("{axis: tp, dim: 0, unit: $head}"), PTC_EINVAL, "\"$head\" is not a parameter");
	refuse(HEAD "rules: [{match: a, expert: 'x'}]", PTC_EINVAL, "expert must be a pattern with one {}");
	refuse(HEAD "rules: [{match: a, shard: dim}]", PTC_EINVAL, "shard");
	refuse(HEAD "rules: [{match: a, shard: {}}]", PTC_EINVAL, "shard has no \"dim\"");
	refuse(HEAD "rules: [bert]\nbuffers: {ordr: []}", PTC_EINVAL, "did you mean \"order\"");
	refuse(HEAD "rules: [bert]\nbuffers: {order: ['a{}{}{}']}", PTC_EINVAL, "three {}");
	refuse(HEAD "rules: [bert]\nbuffers: {groups: x}", PTC_EINVAL, "groups must be a list");
	refuse(HEAD "rules: [bert]\nbuffers: {groups: [x, []]}", PTC_EINVAL, "a group without patterns");
	refuse(HEAD "rules: [bert]\nbuffers: {groups: ['[x']}", PTC_EINVAL, "group 0");
	refuse(HEAD "rules: [bert]\nbuffers: {bucket_per_dp: 0}", PTC_EINVAL, "bucket_per_dp");
	refuse(HEAD "rules: [{match: a, layer: {}}]", PTC_EINVAL, "layer must have \"match\"");
	refuse(HEAD "rules: [{match: a, layer: {offset: 1}}]", PTC_EINVAL, "layer must have \"match\"");
	refuse(HEAD "rules: [{match: a, layer: {at: 1, match: 'a.{}'}}]", PTC_EINVAL, "layer must have \"match\"");
	refuse(HEAD "rules: [{match: a, layer: {match: 'a.{}', offset: 1, after: 'b.{}'}}]", PTC_EINVAL,
	       "layer must have \"match\"");
	refuse(HEAD "rules: [{match: a, layer: {match: a, offset: 1}}]", PTC_EINVAL, "with one {} where");
	refuse(HEAD "rules: [{match: a, layer: {match: 'a.{}', after: b}}]", PTC_EINVAL, "with one {} where");
	refuse(HEAD "rules: [{match: a, layer: {match: 'a.{}', offset: -1}}]", PTC_EINVAL, "offset");
	refuse(HEAD "rules: [{match: a, layer: {match: 'a.{}', ofset: 1}}]", PTC_EINVAL, "did you mean \"offset\"");
	refuse(HEAD "rules: [{match: a, when: '[x'}]", PTC_EINVAL, "when is empty");
	refuse(HEAD "rules: [{match: a, unless: ''}]", PTC_EINVAL, "unless");
	refuse(HEAD "rules: [bert]\nbuffers: {align: 0}", PTC_EINVAL, "align");
	refuse(HEAD "rules: [bert, {use: llama, head: 0}]", PTC_EINVAL, "head must be in 1..");
	refuse(HEAD "rules: [bert, {use: [x]}]", PTC_EINVAL, "use");
}

/* job.yaml beside a checkpoint; the rule set is found on the path's second directory. */
static void test_read(void **state)
{
	static const char header[] =
		"{\"embeddings.word_embeddings.weight\":{\"dtype\":\"U8\",\"shape\":[9,1],\"data_offsets\":[0,9]},"
		"\"encoder.layer.0.attention.self.query.weight\":{\"dtype\":\"U8\",\"shape\":[64,1],\"data_offsets\":["
		"9,73]}}";
	static const char yaml[] = "version: 1\nname: b\ntensors: {from: m.safetensors}\nrules: bert\n";
	static const char bad[] = "version: 1\nname: b\ntensors: {from: m.safetensors}\nrules: brt\n";
	char dir[] = "/tmp/ptc-test-job.XXXXXX", path[128], file[8 + sizeof(header) - 1 + 73] = { sizeof(header) - 1 };
	struct ptc_error err = PTC_ERROR_INIT;
	struct ptc_job_desc job = { 0 };

	assert_non_null(mkdtemp(dir));
	memcpy(file + 8, header, sizeof(header) - 1);
	snprintf(path, sizeof(path), "%s/m.safetensors", dir);
	assert_true(sizeof(header) - 1 < 256);
	file[0] = (char)(sizeof(header) - 1);
	assert_int_equal(ptc_sys_write_file(path, file, sizeof(file), 0600, "test", NULL), 0);
	snprintf(path, sizeof(path), "%s/job.yaml", dir);
	assert_int_equal(ptc_sys_write_file(path, yaml, strlen(yaml), 0600, "test", NULL), 0);
	if (ptc_job_read(path, "/nonexistent::" TEST_RULES_DIR, &job, &err))
		fail_msg("%s", err.text);
	assert_int_equal(job.spec.ntensors, 2);
	assert_true(job.spec.nrules > 5);
	assert_non_null(strstr(job.source, "/m.safetensors"));
	ptc_job_desc_done(&job);
	assert_int_equal(ptc_job_read(path, "/nonexistent", &job, &err), 0); /* built in */
	assert_true(job.spec.nrules > 5);
	ptc_job_desc_done(&job);
	assert_int_equal(ptc_job_read(path, NULL, &job, &err), PTC_EINVAL);
	assert_int_equal(ptc_sys_write_file(path, bad, strlen(bad), 0600, "test", NULL), 0);
	assert_int_equal(ptc_job_read(path, TEST_RULES_DIR, &job, &err), PTC_ENOTFOUND);
	assert_non_null(strstr(err.text, "job.yaml:4: no rule set \"brt\""));
	snprintf(path, sizeof(path), "%s/none.yaml", dir);
	assert_int_equal(ptc_job_read(path, NULL, &job, &err), PTC_ENOTFOUND);
	assert_int_equal(ptc_sys_remove_tree(dir, "test", NULL), 0);
}

/* Each shipped rule set decodes and gives a model's tensors the split they should have. */
static void test_rule_sets(void **state)
{
	static const struct {
		const char *set, *tensor, *dtype_shape;
		enum ptc_axis axis;
		uint32_t dim;
		enum ptc_place place;
	} cases[] = {
		{ "bert", "embeddings.word_embeddings.weight", "[30522, 384]", PTC_AXIS_TP, 0, PTC_PLACE_FIRST },
		{ "bert", "embeddings.position_ids", "[1, 512]", PTC_AXIS_NONE, 0, PTC_PLACE_FIRST },
		{ "bert", "embeddings.LayerNorm.bias", "[384]", PTC_AXIS_NONE, 0, PTC_PLACE_FIRST },
		{ "bert", "encoder.layer.3.attention.self.query.weight", "[384, 384]", PTC_AXIS_TP, 0,
		  PTC_PLACE_LAYER },
		{ "bert", "encoder.layer.3.attention.self.value.bias", "[384]", PTC_AXIS_TP, 0, PTC_PLACE_LAYER },
		{ "bert", "encoder.layer.3.attention.output.dense.weight", "[384, 384]", PTC_AXIS_TP, 1,
		  PTC_PLACE_LAYER },
		{ "bert", "encoder.layer.3.attention.output.dense.bias", "[384]", PTC_AXIS_NONE, 0, PTC_PLACE_LAYER },
		{ "bert", "encoder.layer.3.attention.output.LayerNorm.weight", "[384]", PTC_AXIS_NONE, 0,
		  PTC_PLACE_LAYER },
		{ "bert", "encoder.layer.5.intermediate.dense.weight", "[1536, 384]", PTC_AXIS_TP, 0, PTC_PLACE_LAYER },
		{ "bert", "encoder.layer.5.intermediate.dense.bias", "[1536]", PTC_AXIS_TP, 0, PTC_PLACE_LAYER },
		{ "bert", "encoder.layer.5.output.dense.weight", "[384, 1536]", PTC_AXIS_TP, 1, PTC_PLACE_LAYER },
		{ "bert", "encoder.layer.5.output.dense.bias", "[384]", PTC_AXIS_NONE, 0, PTC_PLACE_LAYER },
		{ "bert", "pooler.dense.weight", "[384, 384]", PTC_AXIS_NONE, 0, PTC_PLACE_LAST },
		{ "gpt2", "wte.weight", "[50257, 768]", PTC_AXIS_TP, 0, PTC_PLACE_ENDS },
		{ "gpt2", "transformer.h.11.attn.c_attn.weight", "[768, 2304]", PTC_AXIS_TP, 1, PTC_PLACE_LAYER },
		{ "gpt2", "h.0.ln_1.weight", "[768]", PTC_AXIS_NONE, 0, PTC_PLACE_LAYER },
		{ "gpt2", "ln_f.weight", "[768]", PTC_AXIS_NONE, 0, PTC_PLACE_LAST },
		{ "llama", "model.layers.31.self_attn.k_proj.weight", "[1024, 4096]", PTC_AXIS_TP, 0, PTC_PLACE_LAYER },
		{ "llama", "model.layers.31.mlp.down_proj.weight", "[4096, 14336]", PTC_AXIS_TP, 1, PTC_PLACE_LAYER },
		{ "llama", "model.norm.weight", "[4096]", PTC_AXIS_NONE, 0, PTC_PLACE_LAST },
		{ "megatron_gpt", "decoder.layers.2.self_attention.linear_qkv.weight", "[96, 32]", PTC_AXIS_TP, 0,
		  PTC_PLACE_LAYER },
		{ "megatron_gpt", "decoder.layers.2.mlp.linear_fc1.layer_norm_weight", "[32]", PTC_AXIS_NONE, 0,
		  PTC_PLACE_LAYER },
	};

	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_job_desc job = { 0 };
		const struct ptc_rule *r;
		char yaml[512];

		snprintf(yaml, sizeof(yaml),
			 "version: 1\nname: j\nrules: %s\ntensors: [{name: %s, dtype: F32, shape: %s}]\n", cases[i].set,
			 cases[i].tensor, cases[i].dtype_shape);
		if (decode(yaml, &job, &err))
			fail_msg("%s: %s", cases[i].tensor, err.text);
		r = ptc_spec_rule(&job.spec, 0);
		assert_non_null(r);
		if (r->splits[0].axis != cases[i].axis || r->splits[0].dim != cases[i].dim ||
		    r->place != cases[i].place)
			fail_msg("%s: rule \"%s\" won", cases[i].tensor, r->match);
		ptc_job_desc_done(&job);
	}
}

static void test_nearest(void **state)
{
	static const char *const words[] = { "nodes", "status", "job", "import", "export" };

	assert_string_equal(ptc_name_nearest("node", words, 5), "nodes");
	assert_string_equal(ptc_name_nearest("imprt", words, 5), "import");
	assert_string_equal(ptc_name_nearest("exprot", words, 5), "export");
	assert_null(ptc_name_nearest("xyzzy", words, 5));
	assert_null(ptc_name_nearest("", words, 5));
	assert_null(ptc_name_nearest("b", words, 5));
	assert_null(ptc_name_nearest("a very long word that is longer than any", words, 5));
}

static void test_json_memory(void **state)
{
	static const char text[] = "{\"a\": [1, {\"b\": \"c\"}], \"d\": 2.5}";
	int rc = PTC_ENOMEM;

	for (uint64_t at = 1; rc && at < 1000; at++) {
		struct ptc_error err = PTC_ERROR_INIT;
		json_t *json = NULL;

		ptc_alloc_fail_at(at);
		rc = ptc_json_load("text", text, sizeof(text) - 1, &json, &err);
		ptc_alloc_fail_at(0);
		if (rc && rc != PTC_ENOMEM)
			fail_msg("allocation %d: %s", (int)at, err.text);
		json_decref(json);
	}
	assert_int_equal(rc, 0);
}

/* What a later ptc writes: what it has added is passed over, what it needs is named, and what it adds inside of a rule
 * is none. */
static void test_versions(void **state)
{
	static const char tail[] =
		"\"name\":\"a\",\"tensors\":[{\"name\":\"w\",\"dtype\":\"F32\",\"shape\":[4]}],\"rules\":[{\"match\":"
		"\"w\",\"state\":\"carry\"";
	static const struct {
		unsigned version;
		const char *end;
		int code;
		const char *text;
	} cases[] = {
		{ PTC_JOB_VERSION, "}]}", 0, "" },
		{ PTC_JOB_VERSION + 1, "}],\"later\":{\"deep\":[1]}}", 0, "" },
		{ PTC_JOB_VERSION + 1, "}],\"needs\":[]}", 0, "" },
		{ PTC_JOB_VERSION + 1, "}],\"needs\":[\"copies\"],\"copies\":3}", PTC_EVERSION, "needs \"copies\"" },
		{ PTC_JOB_VERSION + 1, ",\"later\":1}]}", PTC_EINVAL, "unknown key \"later\"" },
		{ PTC_JOB_VERSION, "}],\"later\":1}", PTC_EINVAL, "unknown key \"later\"" },
		{ PTC_JOB_VERSION + 2, "}]}", PTC_EVERSION, "use the ptc that it was written for" },
	};
	char hash[33], first[33] = "";

	(void)state;
	for (size_t i = 0; i < PTC_ARRAY_LEN(cases); i++) {
		char *text = ptc_asprintf("{\"version\":%u,%s%s", cases[i].version, tail, cases[i].end);
		struct ptc_error err = PTC_ERROR_INIT;
		struct ptc_job_desc job;

		assert_int_equal(ptc_job_from_json(text, strlen(text), &job, &err), cases[i].code);
		assert_non_null(strstr(err.text, cases[i].text));
		if (!cases[i].code) { /* the same job, whatever version has written it */
			assert_int_equal(ptc_job_hash(&job, hash, &err), 0);
			assert_string_equal(*first ? first : hash, hash);
			memcpy(first, hash, sizeof first);
			ptc_job_desc_done(&job);
		}
		ptc_free(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_canonical),
		cmocka_unit_test(test_two_ways),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_keys),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_states),
		cmocka_unit_test(test_state_max),
		cmocka_unit_test(test_yaml_tricks),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_run),
		cmocka_unit_test(test_run_canonical),
		cmocka_unit_test(test_tables_canonical),
		cmocka_unit_test(test_run_refused),
		cmocka_unit_test(test_data),
		cmocka_unit_test(test_blobs),
		cmocka_unit_test(test_run_bounds),
		cmocka_unit_test(test_resolve_cwd),
		cmocka_unit_test(test_resolve_env),
		cmocka_unit_test(test_resolve_bounds),
		cmocka_unit_test(test_run_no_memory),
		cmocka_unit_test(test_read),
		cmocka_unit_test(test_rule_sets),
		cmocka_unit_test(test_nearest),
		cmocka_unit_test(test_later_keys),
		cmocka_unit_test(test_config_maps),
		cmocka_unit_test(test_settled_rules),
		cmocka_unit_test(test_later_keys_refused),
		cmocka_unit_test(test_json_memory),
		cmocka_unit_test(test_files),
		cmocka_unit_test(test_planning),
		cmocka_unit_test(test_timeouts),
		cmocka_unit_test(test_copies),
		cmocka_unit_test(test_archive),
		cmocka_unit_test(test_hang),
		cmocka_unit_test(test_straggler_refused),
		cmocka_unit_test(test_keep),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
