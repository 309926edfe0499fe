/* SPDX-License-Identifier: Apache-2.0 */
/* Names of dtypes in PyTorch. For an older dtype, torch.save writes the name of a class instead. */
#include "base/check.h"
#include "formats/dcp/torch_file.h"
#include "formats/dcp/torch_parts.h"

#include <string.h>

static const struct {
	enum ptc_dtype dtype;
	const char *name, *class;
} dtypes[] = {
	{ PTC_BOOL, "torch\nbool", "torch\nBoolStorage" },
	{ PTC_U8, "torch\nuint8", "torch\nByteStorage" },
	{ PTC_I8, "torch\nint8", "torch\nCharStorage" },
	{ PTC_F8_E5M2, "torch\nfloat8_e5m2", NULL },
	{ PTC_F8_E4M3, "torch\nfloat8_e4m3fn", NULL },
	{ PTC_F8_E5M2FNUZ, "torch\nfloat8_e5m2fnuz", NULL },
	{ PTC_F8_E4M3FNUZ, "torch\nfloat8_e4m3fnuz", NULL },
	{ PTC_F8_E8M0, "torch\nfloat8_e8m0fnu", NULL },
	{ PTC_I16, "torch\nint16", "torch\nShortStorage" },
	{ PTC_U16, "torch\nuint16", NULL },
	{ PTC_F16, "torch\nfloat16", "torch\nHalfStorage" },
	{ PTC_BF16, "torch\nbfloat16", "torch\nBFloat16Storage" },
	{ PTC_I32, "torch\nint32", "torch\nIntStorage" },
	{ PTC_U32, "torch\nuint32", NULL },
	{ PTC_F32, "torch\nfloat32", "torch\nFloatStorage" },
	{ PTC_C64, "torch\ncomplex64", "torch\nComplexFloatStorage" },
	{ PTC_F64, "torch\nfloat64", "torch\nDoubleStorage" },
	{ PTC_I64, "torch\nint64", "torch\nLongStorage" },
	{ PTC_U64, "torch\nuint64", NULL },
};

#define MODULE_LEN (sizeof "torch\n" - 1)

const char *ptc_torch_dtype_global(enum ptc_dtype dtype)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(dtypes); i++)
		if (dtypes[i].dtype == dtype)
			return dtypes[i].name;
	return NULL;
}

const char *ptc_torch_class_global(enum ptc_dtype dtype)
{
	for (size_t i = 0; i < PTC_ARRAY_LEN(dtypes); i++)
		if (dtypes[i].dtype == dtype)
			return dtypes[i].class;
	return NULL;
}

static bool same(const char *global, const char *name, size_t len)
{
	return global && strlen(global + MODULE_LEN) == len && !memcmp(global + MODULE_LEN, name, len);
}

bool ptc_torch_dtype_parse(const char *name, size_t len, enum ptc_dtype *ret)
{
	if (len > MODULE_LEN && !memcmp(name, "torch ", MODULE_LEN))
		return ptc_torch_dtype_parse(name + MODULE_LEN, len - MODULE_LEN, ret);
	for (size_t i = 0; i < PTC_ARRAY_LEN(dtypes); i++)
		if (same(dtypes[i].name, name, len)) {
			*ret = dtypes[i].dtype;
			return true;
		}
	return false;
}

bool ptc_torch_class_dtype(const char *name, size_t len, enum ptc_dtype *ret)
{
	if (len <= MODULE_LEN || memcmp(name, "torch ", MODULE_LEN) != 0)
		return false;
	for (size_t i = 0; i < PTC_ARRAY_LEN(dtypes); i++)
		if (same(dtypes[i].class, name + MODULE_LEN, len - MODULE_LEN)) {
			*ret = dtypes[i].dtype;
			return true;
		}
	return false;
}
