/* SPDX-License-Identifier: Apache-2.0 */
/* Parses command lines of ptcctl into verbs, options and arguments. Happy path: the longest verb that fits, then
 * options in any place ("--name value", "--name=value", "--" ends them), then its arguments. Failure: CTL_USAGE with
 * one line that names the nearest known word. */
#include "client/ctl/verbs.h"

#include "base/check.h"
#include "client/ctl/show/show.h"
#include "formats/names.h"

#include <stdlib.h>
#include <string.h>

#define MAX_VERBS 64

static int unknown(struct ptc_error *err, const char *what, const char *word, const char *const *known, size_t nknown,
		   const char *dashes)
{
	const char *near = ptc_name_nearest(word, known, nknown);

	if (near)
		return ctl_usage(err, "unknown %s \"%s%.60s\"; did you mean \"%s%s\"?", what, dashes, word, dashes,
				 near);
	return ctl_usage(err, "unknown %s \"%s%.60s\"; see ptcctl --help", what, dashes, word);
}

/* Words of the verb's name that words begins with; 0: it is another verb. */
static int verb_words(const struct ctl_verb *verb, const char *const *words, int nwords)
{
	const char *space = strchr(verb->name, ' ');
	size_t first = space ? (size_t)(space - verb->name) : strlen(verb->name);

	if (!nwords || strlen(words[0]) != first || strncmp(words[0], verb->name, first))
		return 0;
	if (!space)
		return 1;
	return nwords > 1 && !strcmp(words[1], space + 1) ? 2 : 0;
}

static int unknown_verb(const char *const *words, int nwords, struct ptc_error *err)
{
	const char *known[MAX_VERBS];
	size_t n = 0, group = 0;

	if (!nwords)
		return ctl_usage(err, "no verb given; see ptcctl --help");
	for (size_t i = 0; i < ctl_nverbs && n < MAX_VERBS; i++) {
		const char *space = strchr(ctl_verbs[i]->name, ' ');

		if (space && !strncmp(ctl_verbs[i]->name, words[0], (size_t)(space - ctl_verbs[i]->name)) &&
		    !words[0][space - ctl_verbs[i]->name])
			known[group++] = space + 1; /* "job" is right, what follows is not */
		else if (!group)
			known[n++] = ctl_verbs[i]->name;
		n = PTC_MAX(n, group);
	}
	if (group && nwords < 2)
		return ctl_usage(err, "\"%s\" needs a second word: %s%s%s%s%s", words[0], known[0],
				 group > 1 ? ", " : "", group > 1 ? known[1] : "", group > 2 ? ", " : "",
				 group > 2 ? known[2] : "");
	if (group)
		return unknown(err, "verb", words[1], known, group, "");
	return unknown(err, "verb", words[0], known, n, "");
}

static const struct ctl_option *find_option(const struct ctl_option *options, size_t n, const char *name, size_t len)
{
	for (size_t i = 0; i < n; i++)
		if (strlen(options[i].name) == len && !strncmp(options[i].name, name, len))
			return &options[i];
	return NULL;
}

static const struct ctl_option *find_letter(const struct ctl_option *options, size_t n, char letter)
{
	for (size_t i = 0; i < n; i++)
		if (options[i].letter == letter)
			return &options[i];
	return NULL;
}

static bool is_short(const char *word)
{
	return word[0] == '-' && word[1] && word[1] != '-' && !word[2];
}

/* Among the globals and, once it is known, the verb's. */
static const struct ctl_option *lookup(const struct ctl_verb *verb, const char *name, size_t len)
{
	const struct ctl_option *o = find_option(ctl_globals, ctl_nglobals, name, len);

	return o || !verb ? o : find_option(verb->options, verb->noptions, name, len);
}

/* Does any verb have this option with a value in the next word? Needed while the verb is not known yet. */
static bool takes_value(const char *word)
{
	const struct ctl_option *o = find_option(ctl_globals, ctl_nglobals, word + 2, strlen(word + 2));

	if (strchr(word, '='))
		return false;
	for (size_t i = 0; !o && i < ctl_nverbs; i++)
		o = is_short(word)
			    ? find_letter(ctl_verbs[i]->options, ctl_verbs[i]->noptions, word[1])
			    : find_option(ctl_verbs[i]->options, ctl_verbs[i]->noptions, word + 2, strlen(word + 2));
	return o && o->arg;
}

/* The words that are no options, up to max. */
static int plain_words(int argc, char **argv, const char **words, int max)
{
	int n = 0;
	bool options = true;

	for (int i = 1; i < argc && n < max; i++) {
		const char *a = argv[i];

		if (options && !strcmp(a, "--"))
			options = false;
		else if (options && (!strncmp(a, "--", 2) || is_short(a)))
			i += takes_value(a);
		else
			words[n++] = a;
	}
	return n;
}

static int unknown_option(const struct ctl *c, const char *name, size_t len, struct ptc_error *err)
{
	const char *known[CTL_MAX_OPTIONS];
	char word[64];
	size_t n = 0;

	for (size_t i = 0; i < ctl_nglobals; i++)
		known[n++] = ctl_globals[i].name;
	for (size_t i = 0; c->verb && i < c->verb->noptions && n < CTL_MAX_OPTIONS; i++)
		known[n++] = c->verb->options[i].name;
	snprintf(word, sizeof(word), "%.*s", (int)PTC_MIN(len, sizeof(word) - 1), name);
	return unknown(err, "option", word, known, n, "--");
}

/* argv[*i] is the option o, with value if that is not NULL. */
static int take_value(struct ctl *c, const struct ctl_option *o, const char *value, int argc, char **argv, int *i,
		      struct ptc_error *err)
{
	if (!o->arg && value)
		return ctl_usage(err, "--%s takes no value", o->name);
	if (o->arg && !value) {
		if (*i + 1 >= argc)
			return ctl_usage(err, "--%s needs a value (%s)", o->name, o->arg);
		value = argv[++*i];
	}
	if (o->arg && !*value)
		return ctl_usage(err, "--%s needs a value (%s)", o->name, o->arg);
	if (c->ngiven == CTL_MAX_OPTIONS)
		return ctl_usage(err, "there are more than %d options; leave some out", CTL_MAX_OPTIONS);
	c->given[c->ngiven].option = o;
	c->given[c->ngiven++].value = value ? value : "";
	return 0;
}

static int take_option(struct ctl *c, int argc, char **argv, int *i, struct ptc_error *err)
{
	const char *name = argv[*i] + 2, *equals = strchr(name, '=');
	size_t len = equals ? (size_t)(equals - name) : strlen(name);
	const struct ctl_option *o = lookup(c->verb, name, len);

	if (!o)
		return unknown_option(c, name, len, err);
	return take_value(c, o, equals ? equals + 1 : NULL, argc, argv, i, err);
}

static int take_short(struct ctl *c, int argc, char **argv, int *i, struct ptc_error *err)
{
	const struct ctl_option *o = find_letter(ctl_globals, ctl_nglobals, argv[*i][1]);

	if (!o && c->verb)
		o = find_letter(c->verb->options, c->verb->noptions, argv[*i][1]);
	if (!o || !is_short(argv[*i]))
		return ctl_usage(err, "unknown option \"%.60s\"; see ptcctl --help", argv[*i]);
	return take_value(c, o, NULL, argc, argv, i, err);
}

static int take_words(struct ctl *c, int argc, char **argv, int skip, struct ptc_error *err)
{
	bool options = true;

	for (int i = 1; i < argc; i++) {
		int rc = 0;

		if (options && !strcmp(argv[i], "--"))
			options = false;
		else if (options && !strncmp(argv[i], "--", 2))
			rc = take_option(c, argc, argv, &i, err);
		else if (options && argv[i][0] == '-' && argv[i][1])
			rc = take_short(c, argc, argv, &i, err);
		else if (skip)
			skip--;
		else if (!argv[i][0])
			rc = ctl_usage(err, "argument %d is empty; it takes %s", c->nargs + 1,
				       c->verb && c->verb->args[0] ? c->verb->args : "none");
		else if (c->verb && c->nargs < c->verb->max_args && c->nargs < CTL_MAX_ARGS)
			c->args[c->nargs++] = argv[i];
		else
			rc = ctl_usage(err, "one argument too many: \"%.60s\"", argv[i]);
		if (rc)
			return rc;
	}
	return 0;
}

static int apply_globals(struct ctl *c, struct ptc_error *err)
{
	const char *format = ctl_option(c, "format"), *timeout = ctl_option(c, "timeout");

	c->opts.size = sizeof c->opts;
	c->opts.socket = ctl_option(c, "socket");
	c->opts.server = ctl_option(c, "server");
	c->opts.ca_path = ctl_option(c, "ca");
	c->opts.cert_path = ctl_option(c, "cert");
	c->opts.key_path = ctl_option(c, "key");
	c->opts.member = ctl_option(c, "member");
	c->json = format && !strcmp(format, "json");
	c->svg = format && c->verb->svg && !strcmp(format, "svg");
	if (format && !c->json && !c->svg && strcmp(format, "table"))
		return ctl_usage(err, "--format is table%s json, not \"%.60s\"", c->verb->svg ? ", svg or" : " or",
				 format);
	if (c->opts.server && c->opts.socket)
		return ctl_usage(err, "--server and --socket exclude each other");
	if (c->opts.server && (!c->opts.ca_path || !c->opts.cert_path || !c->opts.key_path))
		return ctl_usage(err, "--server needs --ca, --cert and --key");
	if (!c->opts.socket)
		c->opts.socket = getenv("PTC_SOCKET");
	if (ctl_option(c, "progress"))
		ctl_progress_want_lines();
	if (timeout) {
		int rc = ctl_duration("--timeout", timeout, &c->opts.timeout_ms, err);

		c->opts.stream_timeout_ms = c->opts.timeout_ms;
		return rc;
	}
	return 0;
}

int ctl_parse(struct ctl *c, int argc, char **argv, bool *ret_help, struct ptc_error *err)
{
	const char *words[2] = { NULL, NULL };
	int nwords = plain_words(argc, argv, words, 2), used = 0, rc;

	for (size_t i = 0; i < ctl_nverbs && !used; i++) {
		used = verb_words(ctl_verbs[i], words, nwords);
		if (used)
			c->verb = ctl_verbs[i];
	}
	if (!c->verb && nwords)
		return unknown_verb(words, nwords, err);
	rc = take_words(c, argc, argv, used, err);
	if (rc)
		return rc;
	*ret_help = ctl_option(c, "help") != NULL;
	if (*ret_help)
		return 0;
	if (!c->verb && ctl_option(c, "version"))
		return 0;
	if (!c->verb)
		return unknown_verb(words, 0, err);
	if (c->nargs + (c->verb->job_missing != NULL) < c->verb->min_args)
		return ctl_usage(err, "needs %s; see ptcctl %s --help", c->verb->args, c->verb->name);
	return apply_globals(c, err);
}
