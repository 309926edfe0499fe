/* SPDX-License-Identifier: Apache-2.0 */
/* Starts threads. Every thread of ours has a name, which `top -H` and a debugger show. It blocks all signals, so that
 * signals reach the main thread. A program that such a thread starts sets its own signal mask.
 *
 * A thread is either joined by its starter, or counted: the owner of a count waits until all of its threads have ended.
 *
 * Failure mode: the system cannot start another thread (PTC_EIO). Any thread. */
#pragma once

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_THREAD_NAME_MAX 15 /* bytes; Linux keeps no more */

/* Starts a thread; the caller joins *ret_thread. `name` is copied. */
int ptc_thread_start(pthread_t *ret_thread, const char *name, void *(*fn)(void *arg), void *arg, struct ptc_error *err);

/* Processors that this process may use; at least 1. */
unsigned ptc_thread_processors(void);

/* A count of threads that nobody joins one by one. It must live until ptc_thread_count_done returns. */
struct ptc_thread_count {
	pthread_mutex_t lock;
	pthread_cond_t none;
	size_t running;
};
void ptc_thread_count_init(struct ptc_thread_count *c);
/* Starts a counted thread. PTC_ELIMIT: `max` threads of the count run already. */
int ptc_thread_start_counted(struct ptc_thread_count *c, size_t max, const char *name, void (*fn)(void *arg), void *arg,
			     struct ptc_error *err);
/* Waits until no thread of the count runs. The owner has made sure that no other one starts. */
void ptc_thread_count_done(struct ptc_thread_count *c);

/* Initializes a condition that uses the monotonic clock, which an administrator cannot set. */
void ptc_cond_init(pthread_cond_t *cond);
/* Wait for a signal until a time (of ptc_sys_now_ns), or for a duration. false: the time is over. As with every
 * condition variable, true may come without a signal. */
bool ptc_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns);
bool ptc_cond_wait_ms(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ms);
