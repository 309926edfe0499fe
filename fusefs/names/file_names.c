/* SPDX-License-Identifier: Apache-2.0 */
/* Makes names of files from names of tensors. A tensor's name may be any bytes, up to a KiB. A file's name has no '/',
 * and at most 255 bytes. So bytes that a file's name cannot have are written as %XX, and a name that is too long ends
 * in "~" and a hash of the whole name. */
#include "fusefs/names/file_names.h"

#include "base/number/digest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fs_tensor_name(const char *tensor, const char *suffix, char *ret)
{
	size_t room = FS_NAME_MAX - strlen(suffix), n = 0;
	char hash[33];

	for (const char *p = tensor; *p; p++) {
		bool plain = *p != '/' && *p != '%' && *p != '~' && (unsigned char)*p >= 0x20 && *p != 0x7f &&
			     (*p != '.' || p != tensor);

		if (n + (plain ? 1 : 3) > room) {
			ptc_content_hash(tensor, strlen(tensor), hash);
			n = n > room - 17 ? room - 17 : n;
			n += (size_t)snprintf(ret + n, 18, "~%.16s", hash);
			break;
		}
		if (plain)
			ret[n++] = *p;
		else
			n += (size_t)snprintf(ret + n, 4, "%%%02X", (unsigned char)*p);
	}
	memcpy(ret + n, suffix, strlen(suffix) + 1);
}

void fs_snap_name(uint64_t number, uint64_t step, char ret[64])
{
	snprintf(ret, 64, "snap-%" PRIu64 "-step-%" PRIu64, number, step);
}

bool fs_snap_parse(const char *name, uint64_t *ret_number, uint64_t *ret_step)
{
	char again[64];

	if (strlen(name) >= sizeof(again) || sscanf(name, "snap-%" SCNu64 "-step-%" SCNu64, ret_number, ret_step) != 2)
		return false;
	fs_snap_name(*ret_number, *ret_step, again);
	return !strcmp(name, again);
}

bool fs_number_parse(const char *name, const char *prefix, uint64_t *ret)
{
	size_t n = strlen(prefix);
	uint64_t v = 0;

	if (strncmp(name, prefix, n) != 0 || !name[n] || strlen(name + n) > 18 || (name[n] == '0' && name[n + 1]))
		return false;
	for (const char *p = name + n; *p; p++) {
		if (*p < '0' || *p > '9')
			return false;
		v = v * 10 + (uint64_t)(*p - '0');
	}
	*ret = v;
	return true;
}

static int compare_tensor(const void *name, const void *t)
{
	return strcmp(name, ((const struct ptc_tensor *)t)->name);
}

static const struct ptc_tensor *tensor_of(const struct ptc_spec *spec, const char *name)
{
	return bsearch(name, spec->tensors, spec->ntensors, sizeof(spec->tensors[0]), compare_tensor);
}

/* A field, or, of what ranks declared, a tensor NAME:FIELD beside the tensor NAME. */
bool fs_is_optimizer(const struct ptc_spec *spec, uint32_t item)
{
	char base[PTC_TENSOR_NAME_MAX + 1];
	const char *name, *colon;

	if (item % (1 + spec->nfields))
		return true;
	name = spec->tensors[item / (1 + spec->nfields)].name;
	colon = strrchr(name, ':');
	if (!colon || colon == name || (size_t)(colon - name) >= sizeof(base))
		return false;
	snprintf(base, sizeof(base), "%.*s", (int)(colon - name), name);
	return tensor_of(spec, base) != NULL;
}

static bool item_has_name(const struct ptc_spec *spec, uint32_t item, const char *file)
{
	char text[PTC_TENSOR_NAME_MAX + PTC_FIELD_NAME_MAX + 2], name[FS_NAME_MAX + 1];

	fs_tensor_name(ptc_item_name(spec, item, text, sizeof(text)), ".npy", name);
	return !strcmp(name, file);
}

/* The escapes undone; false: none that we write. */
static bool unescape(const char *file, size_t len, char *ret)
{
	for (size_t i = 0; i < len; i++) {
		unsigned byte;

		if (file[i] == '~')
			return false;
		if (file[i] != '%') {
			*ret++ = file[i];
			continue;
		}
		if (i + 2 >= len || sscanf(file + i + 1, "%2X", &byte) != 1)
			return false;
		*ret++ = (char)byte;
		i += 2;
	}
	*ret = '\0';
	return true;
}

static bool find_short(const struct ptc_spec *spec, const char *name, uint32_t *ret_item)
{
	const struct ptc_tensor *t = tensor_of(spec, name);
	size_t per = 1 + spec->nfields;
	char base[FS_NAME_MAX + 1];
	const char *colon = strrchr(name, ':');

	if (t) {
		*ret_item = (uint32_t)((size_t)(t - spec->tensors) * per);
		return true;
	}
	if (!colon)
		return false;
	snprintf(base, sizeof(base), "%.*s", (int)(colon - name), name);
	t = tensor_of(spec, base);
	for (size_t f = 0; t && f < spec->nfields; f++)
		if (!strcmp(spec->fields[f].name, colon + 1)) {
			*ret_item = (uint32_t)((size_t)(t - spec->tensors) * per + 1 + f);
			return true;
		}
	return false;
}

bool fs_tensor_find(const struct ptc_spec *spec, const char *name, uint32_t *ret_item)
{
	size_t len = strlen(name);
	char plain[FS_NAME_MAX + 1];

	if (len <= 4 || len > FS_NAME_MAX || strcmp(name + len - 4, ".npy"))
		return false;
	if (unescape(name, len - 4, plain))
		return find_short(spec, plain, ret_item) && item_has_name(spec, *ret_item, name);
	for (uint32_t i = 0; strchr(name, '~') && i < ptc_spec_items(spec); i++)
		if (item_has_name(spec, i, name)) {
			*ret_item = i;
			return true;
		}
	return false;
}

bool fs_rank_parse(const char *name, uint32_t world, uint32_t *ret_rank)
{
	char again[64];
	unsigned long rank = strtoul(name, NULL, 10);

	if (strlen(name) >= sizeof(again) || rank >= world)
		return false;
	snprintf(again, sizeof(again), "%lu.safetensors", rank);
	*ret_rank = (uint32_t)rank;
	return !strcmp(name, again);
}
