/* A duplicate of a connection that stayed in the kernel (it asked for a lifetime of packets) is closed with SO_LINGER while its
 * peer reads nothing: close waits, and other threads use their sockets meanwhile. */
#include "behaviour.h"

static void *closer(void *fd) {
    this_thread();
    double before = seconds();
    TRY(close(*(int *)fd));
    say("it lingered: %d", seconds() - before > 4.5);
    return NULL;
}

static void restrict_ttl(int s) {
    int on = 1;
    MUST(setsockopt(s, IPPROTO_IP, IP_MINTTL, &on, sizeof on));
}

int main(void) {
    int kernel = bound(), c = MUST(socket(AF_INET, SOCK_STREAM, 0));
    restrict_ttl(kernel);
    restrict_ttl(c);
    MUST(listen(kernel, 1));
    int d = MUST(dup(c));
    struct linger linger = {.l_onoff = 1, .l_linger = 5};
    MUST(setsockopt(c, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    struct sockaddr_in to = where(kernel);
    TRY(connect(c, (struct sockaddr *)&to, sizeof to));
    int peer = MUST(accept(kernel, NULL, NULL));
    fill(c);
    TRY(close(c));

    struct ends e = ends();
    pthread_t thread;
    pthread_create(&thread, NULL, closer, &d);
    await_thread_asleep();
    double before = seconds();
    char byte;
    TRY(send(e.client, "x", 1, 0));
    TRY(recv(e.server, &byte, 1, 0));
    pid_t child = MUST(fork());
    if (child == 0) _exit(0);
    MUST(waitpid(child, NULL, 0));
    say("meanwhile, at once: %d", seconds() - before < 4);
    pthread_join(thread, NULL);
    close(peer);
}
