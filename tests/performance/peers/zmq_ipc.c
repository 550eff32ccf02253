/* ZeroMQ over ipc: a message and one of the same length back between two processes, which wait in poll.
 *
 *   zmq_ipc BYTES ROUNDS     prints the median half round trip in nanoseconds */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *open_socket(int bind, const char *address) {
    void *socket = zmq_socket(zmq_ctx_new(), ZMQ_PAIR);
    int done = bind ? zmq_bind(socket, address) : zmq_connect(socket, address);
    if (done) {
        perror("zmq");
        exit(1);
    }
    return socket;
}

int main(int count, char **words) {
    if (count != 3)
        return 2;
    size_t len = (size_t)atol(words[1]);
    long rounds = atol(words[2]), warm = rounds / 10 + 1;
    char *bytes = calloc(1, len + 1), address[64];
    double *times = malloc((size_t)(rounds + warm) * sizeof *times);
    if (!bytes || !times || rounds < 1)
        return 1;
    snprintf(address, sizeof address, "ipc:///tmp/csp-zmq-%d", (int)getpid());
    pid_t child = fork();
    if (child == 0) {
        void *socket = open_socket(0, address);
        for (long i = 0; i < rounds + warm; i++) {
            zmq_recv(socket, bytes, len, 0);
            zmq_send(socket, bytes, len, 0);
        }
        zmq_recv(socket, bytes, len, 0); /* until the other has the last */
        _exit(0);
    }
    void *socket = open_socket(1, address);
    for (long i = 0; i < rounds + warm; i++) {
        double start = now();
        zmq_send(socket, bytes, len, 0);
        zmq_recv(socket, bytes, len, 0);
        times[i] = (now() - start) / 2;
    }
    zmq_send(socket, bytes, len, 0);
    waitpid(child, 0, 0);
    qsort(times + warm, (size_t)rounds, sizeof *times, compare);
    printf("%.1f\n", times[warm + rounds / 2]);
    unlink(address + strlen("ipc://"));
    return 0;
}
