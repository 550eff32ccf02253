/* Publishers and subscribers on libzmq that count what arrives and how late.
 *
 * zmq_load send publish|push ENDPOINT SIZE RATE SECONDS   RATE 0: as fast as receivers permit, nothing dropped
 * zmq_load receive publish|push ENDPOINT SOCKETS          until the sender's last message has come on every socket
 *
 * A message: phase (8 bytes), sequence number (8), CLOCK_MONOTONIC in nanoseconds (8), padding. The phases are warm-up, measured and
 * end; only measured ones count. The receiver prints one line of JSON.
 *
 * TEMPLATE=FILE in the environment: messages are the file's bytes instead, with these fields at byte HEADER_AT, and the end has the sequence
 * number 0. HEADER_AT alone is where a receiver finds them.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

enum { WARM, MEASURED, END };
struct header { uint64_t phase, sequence, sent_ns; };

/* How long the receiver waits for a message before it reports what it has. */
#define SILENCE_MS 5000
#define SOCKETS_MAX 1000
#define BUCKETS 4096

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

static void sleep_until(uint64_t at) {
    struct timespec t = {(time_t) (at / 1000000000u), (long) (at % 1000000000u)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static size_t header_at;

static void *connected(void *context, int type, const char *endpoint) {
    void *socket = zmq_socket(context, type);
    int linger = 5000;
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    if (type == ZMQ_SUB)
        zmq_setsockopt(socket, ZMQ_SUBSCRIBE, "", 0);
    if (zmq_connect(socket, endpoint) != 0) {
        fprintf(stderr, "%s: %s\n", endpoint, zmq_strerror(zmq_errno()));
        exit(1);
    }
    return socket;
}

static void send_one(void *socket, char *message, size_t size, uint64_t phase, uint64_t sequence) {
    struct header header = {phase, sequence, now_ns()};
    memcpy(message + header_at, &header, sizeof header);
    if (zmq_send(socket, message, size, 0) < 0) {
        fprintf(stderr, "send: %s\n", zmq_strerror(zmq_errno()));
        exit(1);
    }
}

static int send_all(const char *pattern, const char *endpoint, size_t size, double rate, double seconds) {
    void *context = zmq_ctx_new();
    int pushes = strcmp(pattern, "push") == 0;
    void *socket = connected(context, pushes ? ZMQ_PUSH : ZMQ_PUB, endpoint);
    alarm((unsigned) seconds + 60); /* a broker that takes nothing ends the load */
    const char *template = getenv("TEMPLATE");
    size_t least = header_at + sizeof(struct header);
    char *message = calloc(1, size < least ? least : size);
    if (template) {
        FILE *file = fopen(template, "r");
        if (!file || fread(message, 1, size, file) != size) {
            fprintf(stderr, "%s has not %zu bytes\n", template, size);
            exit(1);
        }
        fclose(file);
    }
    int one = 1;
    if (rate == 0)
        zmq_setsockopt(socket, ZMQ_XPUB_NODROP, &one, sizeof one);
    uint64_t start = now_ns();
    for (int i = 0; i < 100; i++) {
        sleep_until(start + (uint64_t) i * 10000000u);
        send_one(socket, message, size, WARM, template ? (uint64_t) i : 0);
    }
    /* The processor time of what follows is measured from here. */
    puts("{}");
    fflush(stdout);
    start = now_ns();
    uint64_t end = start + (uint64_t) (seconds * 1e9), count = 0;
    for (uint64_t now = start; now < end;) {
        /* Every millisecond what is due until then; or 64 at a time. */
        uint64_t due = rate == 0 ? count + 64 : (uint64_t) ((double) (now - start) / 1e9 * rate) + 1;
        for (; count < due; count++)
            send_one(socket, message, size, MEASURED, count);
        if (rate != 0)
            sleep_until(start + (uint64_t) ((double) (count + (rate > 1000 ? rate / 1000 : 1) - 1) / rate * 1e9));
        now = now_ns();
    }
    double took = (double) (now_ns() - start) / 1e9;
    printf("{\"sent\": %" PRIu64 ", \"seconds\": %.6f}\n", count, took);
    fflush(stdout);
    /* Published ones may be dropped; pushed ones are not, and a second would end the next receiver. */
    for (int i = 0; i < (pushes ? 1 : 10); i++) {
        sleep_until(now_ns() + 50000000u);
        send_one(socket, message, size, END, template ? 0 : count);
    }
    zmq_close(socket);
    zmq_ctx_term(context);
    return 0;
}

struct tally {
    uint64_t received, next, gaps, disordered, total;
    int ended;
};

/* Latencies by buckets of an eighth of a power of two of nanoseconds. */
static uint64_t latencies[BUCKETS];

static unsigned bucket_of(uint64_t ns) {
    if (ns < 16) return (unsigned) ns;
    unsigned log = 63u - (unsigned) __builtin_clzll(ns);
    return log * 8 + (unsigned) (ns >> (log - 3) & 7);
}

static double bucket_us(unsigned bucket) {
    if (bucket < 16) return bucket / 1e3;
    return (double) (UINT64_C(1) << bucket / 8) * (1 + (bucket % 8 + 0.5) / 8) / 1e3;
}

static double percentile(uint64_t count, double part) {
    uint64_t seen = 0;
    for (unsigned i = 0; i < BUCKETS; i++)
        if ((seen += latencies[i]) > (uint64_t) ((double) count * part)) return bucket_us(i);
    return 0;
}

static int receive_all(const char *pattern, const char *endpoint, int sockets) {
    static zmq_pollitem_t items[SOCKETS_MAX];
    static struct tally tallies[SOCKETS_MAX];
    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, SOCKETS_MAX + 10);
    for (int i = 0; i < sockets; i++) {
        items[i].socket = connected(context, strcmp(pattern, "push") == 0 ? ZMQ_PULL : ZMQ_SUB, endpoint);
        items[i].events = ZMQ_POLLIN;
    }
    uint64_t first = 0, last = 0;
    int ended = 0, begun = 0, wait = 30000;
    zmq_msg_t message;
    zmq_msg_init(&message);
    while (ended < sockets && zmq_poll(items, sockets, wait) > 0) {
        wait = SILENCE_MS;
        for (int i = 0; i < sockets; i++) {
            if (!(items[i].revents & ZMQ_POLLIN)) continue;
            struct tally *tally = &tallies[i];
            for (int burst = 0; burst < 100 && zmq_msg_recv(&message, items[i].socket, ZMQ_DONTWAIT) >= 0; burst++) {
                struct header header;
                if (zmq_msg_size(&message) < header_at + sizeof header) return 1;
                memcpy(&header, (char *) zmq_msg_data(&message) + header_at, sizeof header);
                if (header.phase == END) {
                    if (!tally->ended++) ended++;
                    tally->total = header.sequence;
                }
                if (header.phase != MEASURED) continue;
                last = now_ns();
                if (!begun++) first = last;
                latencies[bucket_of(last - header.sent_ns)]++;
                tally->received++;
                if (header.sequence < tally->next) tally->disordered++;
                else {
                    tally->gaps += header.sequence > tally->next;
                    tally->next = header.sequence + 1;
                }
            }
        }
    }
    uint64_t received = 0, lost = 0, disordered = 0;
    for (int i = 0; i < sockets; i++) {
        received += tallies[i].received;
        disordered += tallies[i].disordered;
        if (tallies[i].ended) lost += tallies[i].total - tallies[i].received;
    }
    printf("{\"sockets\": %d, \"ended\": %d, \"received\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"disordered\": %" PRIu64
           ", \"seconds\": %.6f, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
           sockets, ended, received, lost, disordered, (double) (last - first) / 1e9, percentile(received, 0.5),
           percentile(received, 0.99));
    return 0;
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is left of a bench that was ended */
    const char *at = getenv("HEADER_AT");
    header_at = at ? (size_t) atol(at) : 0;
    if (argc == 7 && strcmp(argv[1], "send") == 0)
        return send_all(argv[2], argv[3], (size_t) atol(argv[4]), atof(argv[5]), atof(argv[6]));
    if (argc == 5 && strcmp(argv[1], "receive") == 0 && atoi(argv[4]) <= SOCKETS_MAX)
        return receive_all(argv[2], argv[3], atoi(argv[4]));
    fprintf(stderr, "usage: zmq_load send publish|push ENDPOINT SIZE RATE SECONDS\n       zmq_load receive publish|push ENDPOINT SOCKETS\n");
    return 2;
}
