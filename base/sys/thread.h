/* SPDX-License-Identifier: Apache-2.0 */
/* Starting threads. Every thread of ours has a name, which `top -H` and a debugger show, and all signals blocked, so
 * that signals reach the main thread. A program that such a thread starts sets its own signal mask.
 *
 * A thread is either joined by whoever started it, or counted: its owner waits until all threads of a count have ended.
 *
 * Failure mode: the system has no thread left (PTC_EIO), and nothing was started. Any thread. */
#pragma once

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTC_THREAD_NAME_MAX 15 /* bytes; Linux keeps no more */

/* The caller joins *ret_thread. `name` is copied. */
int ptc_thread_start(pthread_t *ret_thread, const char *name, void *(*fn)(void *arg), void *arg, struct ptc_error *err);

/* Threads that nobody joins one by one. Lives as long as its owner, whom the threads may use until fn returns. */
struct ptc_thread_count {
	pthread_mutex_t lock;
	pthread_cond_t none;
	size_t running;
};
void ptc_thread_count_init(struct ptc_thread_count *c);
/* At most `max` at once (PTC_ELIMIT). */
int ptc_thread_start_counted(struct ptc_thread_count *c, size_t max, const char *name, void (*fn)(void *arg), void *arg,
			     struct ptc_error *err);
/* Waits until none runs. The owner has seen to it that no other one is started. */
void ptc_thread_count_done(struct ptc_thread_count *c);

/* Conditions by the monotonic clock, which an administrator cannot set. */
void ptc_cond_init(pthread_cond_t *cond);
/* Waits for a signal until then (ptc_sys_now_ns), or for so long. False: that time has come. As with every condition a
 * true return may be early. */
bool ptc_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_ns);
bool ptc_cond_wait_ms(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t ms);
