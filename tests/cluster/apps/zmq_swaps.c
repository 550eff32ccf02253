/* Messages through a handler that is replaced meanwhile: how long they wait for that.
 *
 * zmq_swaps TO FROM INTERVAL_US SWAPS
 *
 * Pushes a message every INTERVAL_US and pulls them in the same process. The handler writes its version into the last byte of each.
 * A line of JSON when the first message has come and after each change of the version; the last line, after SWAPS changes, is of all
 * messages. Times are in microseconds, from send to receive.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

struct message { uint64_t sequence, sent_ns; uint8_t padding[15], version; };

/* Messages before and after a change among which the longest wait is looked for. */
#define NEAR 64
#define BUCKETS 8192
/* Width of a bucket of the histogram. */
#define BUCKET_NS 4000

static void *context;
static const char *to;
static uint64_t interval_ns;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

static void *connected(int type, const char *endpoint) {
    void *socket = zmq_socket(context, type);
    int linger = 0;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_connect(socket, endpoint) != 0) {
        fprintf(stderr, "%s: %s\n", endpoint, zmq_strerror(zmq_errno()));
        exit(1);
    }
    return socket;
}

static void *push(void *unused) {
    void *socket = connected(ZMQ_PUSH, to);
    uint64_t at = now_ns();
    (void) unused;
    for (uint64_t sequence = 0;; sequence++) {
        struct message message = {.sequence = sequence, .sent_ns = now_ns()};
        if (zmq_send(socket, &message, sizeof message, 0) < 0)
            return NULL;
        at += interval_ns;
        struct timespec t = {(time_t) (at / 1000000000u), (long) (at % 1000000000u)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
    }
}

static uint64_t histogram[BUCKETS], count, lost, disordered;

static double percentile(double part) {
    uint64_t seen = 0;
    for (int i = 0; i < BUCKETS; i++)
        if ((double) (seen += histogram[i]) >= part * (double) count)
            return (i + 0.5) * BUCKET_NS / 1e3;
    return BUCKETS * BUCKET_NS / 1e3;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    context = zmq_ctx_new();
    to = argv[1];
    interval_ns = strtoull(argv[3], NULL, 10) * 1000;
    unsigned swaps = (unsigned) atoi(argv[4]), seen = 0, after = 0;
    void *socket = connected(ZMQ_PULL, argv[2]);
    int silence = 20000;
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &silence, sizeof silence);
    pthread_t thread;
    pthread_create(&thread, NULL, push, NULL);
    uint64_t next = 0, last_at = 0, gap = 0, near[NEAR] = {0}, longest = 0;
    uint8_t version = 0;
    struct message message;
    while (seen < swaps || after) {
        if (zmq_recv(socket, &message, sizeof message, 0) != sizeof message) {
            fprintf(stderr, "no message, or one of another size: %s\n", zmq_strerror(zmq_errno()));
            return 1;
        }
        uint64_t at = now_ns(), took = at - message.sent_ns;
        lost += message.sequence > next ? message.sequence - next : 0;
        disordered += message.sequence < next;
        next = message.sequence + 1;
        if (version == 0)
            printf("{\"first\": %" PRIu64 "}\n", message.sequence), lost = 0;
        else if (message.version != version) {
            gap = at - last_at, after = NEAR, longest = 0;
            for (int i = 0; i < NEAR; i++)
                longest = near[i] > longest ? near[i] : longest;
        }
        version = message.version, last_at = at;
        near[message.sequence % NEAR] = took;
        histogram[took / BUCKET_NS < BUCKETS ? took / BUCKET_NS : BUCKETS - 1]++, count++;
        if (after) {
            longest = took > longest ? took : longest;
            if (--after == 0) {
                printf("{\"gap_us\": %.1f, \"longest_us\": %.1f}\n", (double) gap / 1e3, (double) longest / 1e3);
                seen++;
            }
        }
        fflush(stdout);
    }
    printf("{\"count\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"disordered\": %" PRIu64
           ", \"p50_us\": %.1f, \"p99_us\": %.1f}\n", count, lost, disordered, percentile(0.5), percentile(0.99));
    fflush(stdout);
    _exit(0);
}
