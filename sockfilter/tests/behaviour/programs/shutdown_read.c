/* After SHUT_RD reading gives the end; writing goes on. */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[8];
    TRY(shutdown(e.server, SHUT_RD));
    TRY(recv(e.server, b, 8, 0));
    TRY(send(e.server, "on", 2, 0));
    TRY(recv(e.client, b, 8, 0));
    TRY(send(e.client, "x", 1, MSG_NOSIGNAL));
    TRY(shutdown(e.server, 7));
}
