package keda

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Files are those of a mounted Secret. They are read again when they change.
type Files struct {
	// Certificate and Key are the server's: PEM, the certificate first and its issuers after it.
	Certificate, Key string
	// ClientCA has who signs the certificates that clients must show; empty lets all clients in.
	ClientCA string
}

func (f Files) validate() error {
	if (f.Certificate == "") != (f.Key == "") {
		return fmt.Errorf("serve KEDA with certificate %q and key %q: one is missing: give both files, or neither for plain text", f.Certificate, f.Key)
	}
	if f.ClientCA != "" && f.Certificate == "" {
		return fmt.Errorf("serve KEDA with client CA %q: clients cannot show certificates without TLS: give the server's certificate and key as well", f.ClientCA)
	}
	return nil
}

// certificates are what the files have, or had when they could last be used.
type certificates struct {
	files   Files
	clock   clock.WithDelayedExecution
	server  *dynamiccertificates.DynamicCertKeyPairContent
	clients *dynamiccertificates.DynamicFileCAContent // nil where no client needs a certificate
	current *dynamiccertificates.DynamicServingCertificateController
}

// loadCertificates is an error where the files cannot be used.
func loadCertificates(f Files, c clock.WithDelayedExecution) (*certificates, error) {
	server, err := dynamiccertificates.NewDynamicServingContentFromFiles("keda", f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("read the certificate %s and its key %s: %w", f.Certificate, f.Key, err)
	}
	base := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"}, // gRPC sets it in a configuration that is replaced by this one
		// A resumed session is of a certificate that was verified long ago.
		SessionTicketsDisabled: true,
	}
	result := &certificates{files: f, clock: c, server: server}
	var clientCA dynamiccertificates.CAContentProvider
	if f.ClientCA != "" {
		result.clients, err = dynamiccertificates.NewDynamicCAContentFromFile("keda", f.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("read the CA of clients %s: %w", f.ClientCA, err)
		}
		clientCA = result.clients
		base.ClientAuth = tls.RequireAndVerifyClientCert
	}
	result.current = dynamiccertificates.NewDynamicServingCertificateController(base, clientCA, server, nil, nil)
	if err := result.current.RunOnce(); err != nil {
		return nil, fmt.Errorf("use the certificate %s: %w", f.Certificate, err)
	}
	return result, nil
}

// waitForCertificates is an error only when ctx has ended.
func waitForCertificates(ctx context.Context, f Files, c clock.WithDelayedExecution) (*certificates, error) {
	told := newTold(c)
	for {
		loaded, err := loadCertificates(f, c)
		if err == nil {
			return loaded, nil
		}
		if told.news("", err.Error()) {
			klog.FromContext(ctx).Error(err, "Cannot serve KEDA until its certificate can be read: check the mounted Secret")
		}
		select {
		case <-c.After(5 * time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// start follows the files until ctx ends. The result waits until all of it has.
func (c *certificates) start(ctx context.Context) (wait func()) {
	changed := make(listener, 1)
	c.server.AddListener(c.current)
	c.server.AddListener(changed)
	if c.clients != nil {
		c.clients.AddListener(c.current)
		c.clients.AddListener(changed)
	}
	var running sync.WaitGroup
	running.Go(func() { c.server.Run(ctx, 1) })
	if c.clients != nil {
		running.Go(func() { c.clients.Run(ctx, 1) })
	}
	running.Go(func() { c.current.Run(1, ctx.Done()) })
	running.Go(func() { c.watchExpiry(ctx, changed) })
	return running.Wait
}

// listener holds one notice that the files have changed.
type listener chan struct{}

func (l listener) Enqueue() {
	select {
	case l <- struct{}{}:
	default:
	}
}

// credentials are for handshakes from now on.
func (c *certificates) credentials(ctx context.Context) credentials.TransportCredentials {
	return handshakes{
		TransportCredentials: credentials.NewTLS(&tls.Config{
			MinVersion:         tls.VersionTLS12,
			GetConfigForClient: c.current.GetConfigForClient,
		}),
		logger: klog.FromContext(ctx),
		told:   newTold(c.clock),
	}
}

// handshakes tells of clients that were refused, of which gRPC says nothing.
type handshakes struct {
	credentials.TransportCredentials
	logger klog.Logger
	told   *told
}

func (h handshakes) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ServerHandshake(conn)
	if err == nil || errors.Is(err, io.EOF) { // a probe of the port says nothing
		return secured, info, err
	}
	host, _, splitErr := net.SplitHostPort(conn.RemoteAddr().String())
	if splitErr != nil {
		host = conn.RemoteAddr().String()
	}
	if h.told.news(host, err.Error()) {
		h.logger.Error(err, "TLS handshake with a client of KEDA's external scaler failed", "client", host)
	}
	return secured, info, err
}
