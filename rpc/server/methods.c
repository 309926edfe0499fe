/* SPDX-License-Identifier: Apache-2.0 */
/* The methods of a server: which there are, who may call them, how often they were called. Registered before the server
 * starts; read by any thread after that. Failure modes: a malformed or taken name, one method too many, a server that
 * has started (PTC_EINVAL, PTC_EEXIST, PTC_ELIMIT, PTC_ESTATE). */
#include "rpc/server/internal.h"

#include <stdio.h>
#include <string.h>

int ptc_rpc_server_method(struct ptc_rpc_server *srv, const char *method, unsigned roles, ptc_rpc_handler_fn fn,
			  void *arg, struct ptc_error *err)
{
	struct ptc_rpc_method *m = &srv->methods[srv->nmethods];
	const char *slash = method[0] == '/' ? strchr(method + 1, '/') : NULL;

	if (srv->started)
		return ptc_error_set(err, PTC_ESTATE, "%s: the server has started", method);
	if (!slash || slash[1] == '\0' || strlen(method) >= sizeof m->name)
		return ptc_error_set(err, PTC_EINVAL, "\"%s\" is not \"/package.Service/Method\"", method);
	if (srv->nmethods == PTC_RPC_METHODS_MAX)
		return ptc_error_set(err, PTC_ELIMIT, "%s: more than %d methods", method, PTC_RPC_METHODS_MAX);
	for (size_t i = 0; i < srv->nmethods; i++)
		if (strcmp(srv->methods[i].name, method) == 0)
			return ptc_error_set(err, PTC_EEXIST, "%s is registered already", method);
	m->roles = roles;
	m->fn = fn;
	m->arg = arg;
	snprintf(m->name, sizeof m->name, "%s", method);
	srv->nmethods++;
	return 0;
}

void ptc_rpc_server_method_kind(struct ptc_rpc_server *srv, const char *method, enum ptc_rpc_kind kind)
{
	for (size_t i = 0; i < srv->nmethods; i++)
		if (strcmp(srv->methods[i].name, method) == 0)
			srv->methods[i].kind = kind;
}

void ptc_rpc_server_methods(const struct ptc_rpc_server *srv, ptc_rpc_method_fn fn, void *arg)
{
	for (size_t i = 0; i < srv->nmethods; i++)
		fn(arg, srv->methods[i].name, atomic_load_explicit(&srv->methods[i].calls, memory_order_relaxed),
		   atomic_load_explicit(&srv->methods[i].errors, memory_order_relaxed));
}
