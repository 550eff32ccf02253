/* Half-close: the other direction goes on. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[16] = {0};
    send(e.client, "request", 7, 0);
    TRY(shutdown(e.client, SHUT_WR));
    TRY(shutdown(e.client, SHUT_WR));
    TRY(recv(e.server, b, 7, MSG_WAITALL));
    TRY(recv(e.server, b, 7, 0));
    TRY(send(e.server, "answer", 6, 0));
    TRY(recv(e.client, b, 6, MSG_WAITALL));
    say("%s", b);
    TRY(shutdown(e.server, SHUT_WR));
    TRY(recv(e.client, b, 6, 0));
    TRY(send(e.client, "x", 1, MSG_NOSIGNAL));
}
