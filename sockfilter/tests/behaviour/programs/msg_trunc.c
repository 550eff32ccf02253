/* MSG_TRUNC throws bytes away (tcp(7)). */
#include "behaviour.h"

int main(void) {
    struct ends e = ends();
    char b[8] = {0};
    send(e.client, "abcdefgh", 8, 0);
    arrived(e.server, 8);
    TRY(recv(e.server, NULL, 3, MSG_TRUNC));
    TRY(recv(e.server, b, 2, 0));
    say("%s", b);
    TRY(recv(e.server, b, 2, MSG_TRUNC));
    say("%s", b);
    TRY(recv(e.server, b, 8, 0));
    say("%s", b);
    TRY(recv(e.server, NULL, 8, MSG_TRUNC | MSG_DONTWAIT));
}
