// Go's net/http: HTTP/1.1 with kept connections; HTTP/2 where TLS chooses it. Arguments: URL CA FILE
package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(answer *http.Response, err error) []byte {
	check(err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	check(err)
	if answer.StatusCode != 200 {
		check(fmt.Errorf("%s: %s", answer.Request.URL, answer.Status))
	}
	return body
}

func run(base string, roots *x509.CertPool, data []byte, http2 bool) string {
	transport := &http.Transport{MaxConnsPerHost: 16, MaxIdleConnsPerHost: 16, ForceAttemptHTTP2: http2,
		TLSClientConfig: &tls.Config{RootCAs: roots}}
	if !http2 {
		transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	var group sync.WaitGroup
	for i := 0; i < 50; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := 0; n < 20; n++ {
				if length := len(read(client.Get(base + "/1KiB"))); length != 1024 {
					check(fmt.Errorf("%d bytes", length))
				}
			}
		}()
	}
	group.Wait()
	answer, err := client.Get(base + "/big")
	protocol := ""
	if err == nil {
		protocol = answer.Proto
	}
	if !bytes.Equal(read(answer, err), data) {
		check(fmt.Errorf("/big differs"))
	}
	sum := sha256.Sum256(data)
	// A reader of another type has no length: it is sent in chunks.
	for _, body := range []io.Reader{bytes.NewReader(data), struct{ io.Reader }{bytes.NewReader(data)}} {
		if got := strings.TrimSpace(string(read(client.Post(base+"/upload", "application/octet-stream", body)))); got != hex.EncodeToString(sum[:]) {
			check(fmt.Errorf("upload: %s", got))
		}
	}
	transport.CloseIdleConnections()
	return protocol + ": 1003 requests, 0 failed"
}

func main() {
	base := os.Args[1]
	pem, err := os.ReadFile(os.Args[2])
	check(err)
	data, err := os.ReadFile(os.Args[3])
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	said := run(base, roots, data, false)
	if strings.HasPrefix(base, "https") {
		said += "; " + run(base, roots, data, true)
	}
	fmt.Println(said)
}
