/* libzmq's forwarder: zmq_proxy between two sockets that peers connect to. What the proxy's broker is measured beside.
 *
 * zmq_forwarder publish|push FRONT BACK: publishers (pushers) connect to FRONT, subscribers (pullers) to BACK. With NODROP in the
 * environment, publishers are held back by slow subscribers instead of messages being dropped.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <zmq.h>

static void *bound(void *context, int type, const char *endpoint) {
    void *socket = zmq_socket(context, type);
    int one = 1, linger = 0;
    if (type == ZMQ_XPUB && getenv("NODROP"))
        zmq_setsockopt(socket, ZMQ_XPUB_NODROP, &one, sizeof one);
    zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_bind(socket, endpoint) != 0) {
        fprintf(stderr, "%s: %s\n", endpoint, zmq_strerror(zmq_errno()));
        exit(1);
    }
    return socket;
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing is left of a bench that was ended */
    if (argc != 4) {
        fprintf(stderr, "usage: zmq_forwarder publish|push FRONT BACK\n");
        return 2;
    }
    int publishes = strcmp(argv[1], "publish") == 0;
    void *context = zmq_ctx_new();
    void *front = bound(context, publishes ? ZMQ_XSUB : ZMQ_PULL, argv[2]);
    void *back = bound(context, publishes ? ZMQ_XPUB : ZMQ_PUSH, argv[3]);
    return zmq_proxy(front, back, NULL) == 0 ? 0 : 1;
}
