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

// Files are paths in a mounted Secret. Changed files are read again.
type Files struct {
	// Certificate and Key are the server's in PEM, the certificate followed by its issuers.
	Certificate, Key string
	// ClientCA verifies client certificates; empty accepts all clients.
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

// certificates hold the last valid content of the files.
type certificates struct {
	files   Files
	clock   clock.WithDelayedExecution
	server  *dynamiccertificates.DynamicCertKeyPairContent
	clients *dynamiccertificates.DynamicFileCAContent // nil if clients need no certificate
	current *dynamiccertificates.DynamicServingCertificateController
}

// loadCertificates returns an error if the files are unusable.
func loadCertificates(f Files, c clock.WithDelayedExecution) (*certificates, error) {
	server, err := dynamiccertificates.NewDynamicServingContentFromFiles("keda", f.Certificate, f.Key)
	if err != nil {
		return nil, fmt.Errorf("read the certificate %s and its key %s: %w", f.Certificate, f.Key, err)
	}
	base := &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"h2"}, // gRPC sets it in a configuration that is replaced by this one
		// A resumed session would skip the verification of the client's certificate.
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

// waitForCertificates returns an error only if ctx ended.
func waitForCertificates(ctx context.Context, f Files, c clock.WithDelayedExecution) (*certificates, error) {
	reported := newReportedErrors(c)
	for {
		loaded, err := loadCertificates(f, c)
		if err == nil {
			return loaded, nil
		}
		if reported.isNew("", err.Error()) {
			klog.FromContext(ctx).Error(err, "Cannot serve KEDA until its certificate can be read: check the mounted Secret")
		}
		select {
		case <-c.After(5 * time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// start follows the files until ctx ends; wait returns when all goroutines have.
func (c *certificates) start(ctx context.Context) (wait func()) {
	c.server.AddListener(c.current)
	if c.clients != nil {
		c.clients.AddListener(c.current)
	}
	var running sync.WaitGroup
	running.Go(func() { c.server.Run(ctx, 1) })
	if c.clients != nil {
		running.Go(func() { c.clients.Run(ctx, 1) })
	}
	running.Go(func() { c.current.Run(1, ctx.Done()) })
	return running.Wait
}

// credentials apply to new handshakes.
func (c *certificates) credentials(ctx context.Context) credentials.TransportCredentials {
	return handshakes{
		TransportCredentials: credentials.NewTLS(&tls.Config{
			MinVersion:         tls.VersionTLS12,
			GetConfigForClient: c.current.GetConfigForClient,
		}),
		logger:   klog.FromContext(ctx),
		reported: newReportedErrors(c.clock),
	}
}

// handshakes logs failed handshakes; gRPC does not.
type handshakes struct {
	credentials.TransportCredentials
	logger   klog.Logger
	reported *reportedErrors
}

func (h handshakes) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ServerHandshake(conn)
	if err == nil || errors.Is(err, io.EOF) { // a probe of the port sends nothing
		return secured, info, err
	}
	host, _, splitErr := net.SplitHostPort(conn.RemoteAddr().String())
	if splitErr != nil {
		host = conn.RemoteAddr().String()
	}
	if h.reported.isNew(host, err.Error()) {
		h.logger.Error(err, "TLS handshake with a client of KEDA's external scaler failed", "client", host)
	}
	return secured, info, err
}
