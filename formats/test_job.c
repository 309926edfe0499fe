// SPDX-License-Identifier: Apache-2.0
/* Unit tests of formats/job.h: decoding, strictness, round trips, rule sets. */
#include "base/alloc.h"
#include "base/check.h"
#include "base/sys.h"
#include "formats/job.h"
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
			     "    fields: {master: {split: {axis: none}, state: derive}}\n"
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
	assert_int_equal(job.spec.rules[0].axis, PTC_AXIS_NONE);
	assert_int_equal(job.spec.rules[0].carry, PTC_CARRY_DERIVE);
	assert_string_equal(job.spec.rules[0].layer, "h.{}.*");
	assert_int_equal(job.spec.rules[1].axis, PTC_AXIS_TP);
	assert_int_equal(job.spec.rules[1].nblocks, 2);
	assert_int_equal(job.spec.rules[1].unit, 2);
	assert_null(job.spec.rules[1].fields);
	assert_int_equal(job.spec.rules[2].place, PTC_PLACE_LAST);
	assert_int_equal(job.ngpus, 2);
	assert_int_equal(job.gpus[0].n, 2);
	assert_int_equal(ptc_job_config_for(&job, 4)->stages[1], 1);
	assert_null(ptc_job_config_for(&job, 8));
	assert_null(job.source);
	ptc_job_desc_done(&job);
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
		"{\"match\":\"h.*\",\"split\":{\"axis\":\"tp\",\"dim\":1,\"kind\":\"balanced\"},\"layer\":\"h.{}.w\","
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
	refuse(HEAD RULES "run: {argv: [a]}", PTC_EINVAL, "unknown key \"run\" in the job");
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
	refuse(HEAD RULES "fields: [a]", PTC_EINVAL, "must be a map");
	refuse(HEAD "rules: []", PTC_EINVAL, "rules must be");
	refuse(HEAD "rules: [{split: {axis: tp, dim: 0}}]", PTC_EINVAL, "no \"match\"");
	refuse(HEAD "rules: [{match: a, split: {dim: 0}}]", PTC_EINVAL, "no \"axis\"");
	refuse(HEAD "rules: [{match: a, split: {axis: tp}}]", PTC_EINVAL, "no \"dim\"");
	refuse(HEAD "rules: [{match: a, split: {axis: none, dim: 0}}]", PTC_EINVAL, "axis none");
	refuse(HEAD "rules: [{match: a, split: {axis: dp, dim: 0}}]", PTC_EINVAL, "unknown axis \"dp\"");
	refuse(HEAD "rules: [{match: a, split: {axis: tp, dim: 0, kind: evn}}]", PTC_EINVAL, "did you mean \"even\"");
	refuse(HEAD "rules: [{match: a, split: {axis: tp, dim: 0, blocks: [0]}}]", PTC_EINVAL,
	       "a block must be in 1..");
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

static void test_no_memory(void **state)
{
	static const char json[] =
		JSON_HEAD ",\"fields\":{\"m\":{}},\"rules\":[{\"match\":\"a\",\"split\":{\"axis\":\"tp\","
			  "\"dim\":0,\"blocks\":[2,2]},\"fields\":{\"m\":{\"state\":\"reset\"}}}],"
			  "\"gpus\":{\"2\":\"tp=2\"}}";
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
	assert_true(failures > 20);
	ptc_job_desc_done(&job);
	assert_int_equal(ptc_alloc_live(), live);
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
	assert_int_equal(ptc_job_read(path, "/nonexistent", &job, &err), PTC_ENOTFOUND);
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
		if (r->axis != cases[i].axis || r->dim != cases[i].dim || r->place != cases[i].place)
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_full),      cmocka_unit_test(test_canonical),   cmocka_unit_test(test_keys),
		cmocka_unit_test(test_values),    cmocka_unit_test(test_yaml_tricks), cmocka_unit_test(test_json),
		cmocka_unit_test(test_no_memory), cmocka_unit_test(test_read),        cmocka_unit_test(test_rule_sets),
		cmocka_unit_test(test_nearest),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
