/* A handler without SA_RESTART interrupts calls that send: with EINTR where nothing went, else with what went. */
#include "interrupted.h"

int main(void) {
    struct ends e = ends();
    struct sigaction a = {.sa_handler = count};
    sigaction(SIGUSR1, &a, NULL);
    waiter = pthread_self();
    stuff(e.client);
    static char much[16 << 20];
    struct iovec part = {much, sizeof much};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr messages[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
    struct pollfd p = {e.client, POLLOUT};
    int file = MUST(open("file", O_RDWR | O_CREAT, 0600)), pipes[2];
    MUST(ftruncate(file, sizeof much));
    MUST(pipe(pipes));
    MUST(write(pipes[1], much, 4096));
    off_t from = 0;
    for (int way = 0; way < 10; way++) {
        pthread_t t;
        fd_set w;
        FD_ZERO(&w);
        FD_SET(e.client, &w);
        start(&t);
        switch (way) {
        case 0: TRY(write(e.client, much, 1)); break;
        case 1: TRY(send(e.client, much, sizeof much, 0)); break;
        case 2: TRY(writev(e.client, &part, 1)); break;
        case 3: TRY(sendmsg(e.client, &message, 0)); break;
        case 4: TRY(sendmmsg(e.client, messages, 2, 0)); break;
        case 5: TRY(sendto(e.client, much, 1, 0, NULL, 0)); break;
        case 6: TRY(poll(&p, 1, -1)); break;
        case 7: TRY(select(e.client + 1, NULL, &w, NULL, NULL)); break;
        case 8: TRY(sendfile(e.client, file, &from, sizeof much)); break;
        case 9: TRY(splice(pipes[0], NULL, e.client, NULL, 4096, 0)); break;
        }
        pthread_join(t, NULL);
    }
    say("seen %d, offset %ld", seen, (long)from);
    /* The bytes sent before the signal are returned. */
    struct ends f = ends();
    pthread_t t;
    start(&t);
    long sent = send(f.client, much, sizeof much, 0);
    say("some, not all: %d", sent > 0 && sent < (long)sizeof much);
    pthread_join(t, NULL);
    drain(f.server, sent);
    TRY(recv(f.server, much, 1, MSG_DONTWAIT));
    /* A pipe that nobody fills, before anything is there to send. */
    char b[4096];
    MUST(read(pipes[0], b, sizeof b));
    start(&t);
    TRY(splice(pipes[0], NULL, f.client, NULL, 4096, 0));
    pthread_join(t, NULL);
}
