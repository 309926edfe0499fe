/* SPDX-License-Identifier: Apache-2.0 */
/* One safetensors file, or several under an index, as one set of tensors.
 * Happy path: index and headers agree in both directions. Failure: PTC_EINVAL
 * naming file and tensor where they do not (a name in two files, in the index
 * only, in a file only), or what reading said. */
#include "formats/tensors/safetensors.h"

#include "base/alloc.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/sys/sys.h"
#include "base/number/search.h"
#include "formats/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_FILES 65536 /* the largest published checkpoints have a few hundred */

PTC_COMPARE(compare_string, char *const, strcmp(*a, *b))

/* The distinct file names of a weight map, sorted; borrowed from the map. */
static int file_names(json_t *map, const char ***ret_names, size_t *ret_n, struct ptc_error *err)
{
	const char **names = ptc_calloc(PTC_MAX(json_object_size(map), 1), sizeof *names), *key;
	size_t n = 0, kept = 0;
	json_t *value;

	if (!names)
		return ptc_nomem(err);
	json_object_foreach(map, key, value) {
		const char *file = json_string_value(value);

		if (!file || !file[0] || file[0] == '.' || strchr(file, '/') || strlen(file) > 255) {
			ptc_free(names);
			return ptc_error_set(err, PTC_EINVAL,
					     "weight_map of \"%.80s\" is not the name of a file in the same directory",
					     key);
		}
		names[n++] = file;
	}
	qsort(names, n, sizeof *names, compare_string);
	for (size_t i = 0; i < n; i++)
		if (!i || strcmp(names[i], names[kept - 1]))
			names[kept++] = names[i];
	*ret_names = names;
	*ret_n = kept;
	return 0;
}

static int add_file(struct ptc_st_set *set, const char *dir, const char *name, struct ptc_error *err)
{
	struct ptc_st_file *file = &set->files[set->nfiles++];

	file->name = ptc_strdup(name);
	file->path = dir ? ptc_asprintf("%s/%s", dir, name) : ptc_strdup(name);
	if (!file->name || !file->path)
		return ptc_nomem(err);
	return ptc_st_read(file->path, &file->st, err);
}

static int compare_ref(const void *pa, const void *pb, void *arg)
{
	const struct ptc_st_set *set = arg;
	const struct ptc_st_ref *a = pa, *b = pb;

	return strcmp(set->files[a->file].st.tensors[a->tensor].t.name,
		      set->files[b->file].st.tensors[b->tensor].t.name);
}

/* Fills refs from the files; a name in two files is an error. */
static int collect(struct ptc_st_set *set, struct ptc_error *err)
{
	size_t n = 0;

	for (size_t f = 0; f < set->nfiles; f++) {
		n += set->files[f].st.ntensors;
		if (ptc_ckd_add(&set->data_bytes, set->data_bytes, set->files[f].st.data_bytes))
			return ptc_error_set(err, PTC_EINVAL, "the files' size overflows");
	}
	if (n > PTC_MAX_TENSORS)
		return ptc_error_set(err, PTC_ELIMIT, "%zu tensors, at most %u are supported", n, PTC_MAX_TENSORS);
	set->refs = ptc_calloc(PTC_MAX(n, 1), sizeof *set->refs);
	if (!set->refs)
		return ptc_nomem(err);
	for (uint32_t f = 0; f < set->nfiles; f++)
		for (uint32_t t = 0; t < set->files[f].st.ntensors; t++)
			set->refs[set->nrefs++] = (struct ptc_st_ref){ f, t };
	qsort_r(set->refs, n, sizeof *set->refs, compare_ref, set);
	for (size_t i = 1; i < n; i++)
		if (!compare_ref(&set->refs[i - 1], &set->refs[i], set))
			return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\" is in both %s and %s",
					     ptc_st_set_tensor(set, i)->t.name, set->files[set->refs[i - 1].file].name,
					     set->files[set->refs[i].file].name);
	return 0;
}

/* weight_map and headers name the same tensors in the same files. */
static int compare_index(const struct ptc_st_set *set, json_t *map, struct ptc_error *err)
{
	const char *key;
	json_t *value;

	for (size_t i = 0; i < set->nrefs; i++) {
		const char *name = ptc_st_set_tensor(set, i)->t.name, *file = set->files[set->refs[i].file].name;
		const char *listed = json_string_value(json_object_get(map, name));

		if (!listed)
			return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\" of %s is not in the index", name, file);
		if (strcmp(listed, file))
			return ptc_error_set(err, PTC_EINVAL, "tensor \"%s\" is in %s, the index says %s", name, file,
					     listed);
	}
	if (json_object_size(map) == set->nrefs)
		return 0;
	json_object_foreach(map, key, value) {
		struct ptc_st_file *f = NULL;

		for (size_t i = 0; i < set->nfiles && !f; i++)
			if (!strcmp(set->files[i].name, json_string_value(value)))
				f = &set->files[i];
		if (f && !ptc_st_find(&f->st, key))
			return ptc_error_set(err, PTC_EINVAL, "tensor \"%.200s\" is in the index, but not in %s", key,
					     f->name);
	}
	return ptc_error_set(err, PTC_EINVAL, "the index does not name the tensors of its files");
}

static int read_indexed(const char *dir, const char *index_path, struct ptc_st_set *set, struct ptc_error *err)
{
	ptc_auto_free const char **names = NULL;
	json_t *json = NULL, *map;
	size_t n = 0;
	int rc;

	rc = ptc_sys_read_file(index_path, PTC_SAFETENSORS_HEADER_MAX, &set->index, &set->index_len, err);
	if (!rc)
		rc = ptc_json_load(index_path, set->index, set->index_len, &json, err);
	if (rc)
		return rc;
	map = json_object_get(json, "weight_map");
	if (!json_is_object(map))
		rc = ptc_error_set(err, PTC_EINVAL, "%s: \"weight_map\" is missing or not an object", index_path);
	if (!rc && (rc = file_names(map, &names, &n, err)))
		ptc_error_wrap(err, "%s", index_path);
	if (!rc && n > MAX_FILES)
		rc = ptc_error_set(err, PTC_ELIMIT, "%s: %zu files, at most %d are supported", index_path, n,
				   MAX_FILES);
	if (!rc) {
		set->files = ptc_calloc(PTC_MAX(n, 1), sizeof *set->files);
		rc = set->files ? 0 : ptc_nomem(err);
	}
	for (size_t i = 0; i < n && !rc; i++)
		rc = add_file(set, dir, names[i], err);
	if (!rc)
		rc = collect(set, err);
	if (!rc && (rc = compare_index(set, map, err)))
		ptc_error_wrap(err, "%s", index_path);
	json_decref(json);
	return rc;
}

static int read_single(const char *path, struct ptc_st_set *set, struct ptc_error *err)
{
	const char *slash = strrchr(path, '/');
	int rc;

	set->files = ptc_calloc(1, sizeof *set->files);
	if (!set->files)
		return ptc_nomem(err);
	rc = add_file(set, NULL, path, err);
	if (rc)
		return rc;
	ptc_free(set->files[0].name);
	set->files[0].name = ptc_strdup(slash ? slash + 1 : path);
	if (!set->files[0].name)
		return ptc_nomem(err);
	return collect(set, err);
}

static int read_directory(const char *path, struct ptc_st_set *set, struct ptc_error *err)
{
	ptc_auto_free char *index = ptc_asprintf("%s/" PTC_ST_INDEX_NAME, path);
	ptc_auto_free char *single = ptc_asprintf("%s/" PTC_ST_MODEL_NAME, path);
	struct stat sb;

	if (!index || !single)
		return ptc_nomem(err);
	if (!stat(index, &sb))
		return read_indexed(path, index, set, err);
	if (!stat(single, &sb))
		return read_single(single, set, err);
	return ptc_error_set(err, PTC_ENOTFOUND, "%s: neither " PTC_ST_INDEX_NAME " nor " PTC_ST_MODEL_NAME " in it",
			     path);
}

static bool has_suffix(const char *s, const char *suffix)
{
	size_t n = strlen(s), k = strlen(suffix);

	return n >= k && !strcmp(s + n - k, suffix);
}

int ptc_st_set_read(const char *path, struct ptc_st_set *ret_set, struct ptc_error *err)
{
	ptc_auto_free char *dir = NULL;
	const char *slash = strrchr(path, '/');
	struct ptc_st_set set = { 0 };
	struct stat sb;
	int rc;

	if (stat(path, &sb))
		return ptc_error_errno(err, errno, "%s", path);
	if (S_ISDIR(sb.st_mode)) {
		rc = read_directory(path, &set, err);
	} else if (has_suffix(path, ".index.json")) {
		dir = slash ? ptc_strndup(path, (size_t)PTC_MAX(slash - path, 1)) : ptc_strdup(".");
		rc = dir ? read_indexed(dir, path, &set, err) : ptc_nomem(err);
	} else {
		rc = read_single(path, &set, err);
	}
	if (rc) {
		ptc_st_set_done(&set);
		return rc;
	}
	*ret_set = set;
	return 0;
}

void ptc_st_set_done(struct ptc_st_set *set)
{
	for (size_t f = 0; f < set->nfiles; f++) {
		ptc_free(set->files[f].name);
		ptc_free(set->files[f].path);
		ptc_st_done(&set->files[f].st);
	}
	ptc_free(set->files);
	ptc_free(set->refs);
	ptc_free(set->index);
	memset(set, 0, sizeof *set);
}
