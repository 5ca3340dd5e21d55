package keda

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/api/externalscaler"
)

// What one client can ask for. A KEDA operator has one connection for all its ScaledObjects, and
// on it two streams for each trigger of type external-push besides the polls.
const (
	maxConnections = 256
	// A client that is over it waits for a stream to end, its polls as well: it is far above the
	// 2,000 streams of 1,000 ScaledObjects.
	maxStreams = 1 << 14
	// A trigger's metadata is a map that a person wrote.
	maxRequestBytes = 256 << 10
	maxHeaderBytes  = 16 << 10

	handshakeTimeout = 10 * time.Second
	// requestTimeout is for what has no deadline of its own. KEDA's requests have none.
	requestTimeout = 15 * time.Second
	// stopTimeout is for the requests under way when the server is told to stop.
	stopTimeout = 5 * time.Second
)

// streamAge is when a stream is ended in good order. KEDA waits longer after each broken stream,
// up to a minute, and forgets that only when one ends so: without an end, a target would be
// activated up to a minute late, for ever after the controller was away once. The price is the two
// seconds after which KEDA opens the next, which tells the state at once.
const streamAge = 15 * time.Minute

// connectionAge is when a client is told to connect anew, for which its certificate is verified
// again. It has the time of a stream to do so, so that none is broken.
const connectionAge = 30 * time.Minute

// Options of a Server.
type Options struct {
	// Address is host:port to listen on.
	Address string
	// TLS is zero for plain text.
	TLS Files
	// Listening is called with the address when the server listens; nil is allowed.
	Listening func(net.Addr)
	// Clock is for the age of streams, the time that answers take and certificates that expire.
	Clock clock.WithDelayedExecution
}

// Server serves KEDA's external scaler. It is a Runnable of controller-runtime's manager.
type Server struct {
	options Options
	scaler  scaler
}

// NewServer is an error where the options cannot work. It does not listen yet.
func NewServer(options Options, a scaler) (*Server, error) {
	if _, _, err := net.SplitHostPort(options.Address); err != nil {
		return nil, fmt.Errorf("serve KEDA on %q: %w: give host:port or :port", options.Address, err)
	}
	if err := options.TLS.validate(); err != nil {
		return nil, err
	}
	return &Server{options: options, scaler: a}, nil
}

// NeedLeaderElection is false: every replica serves, so that a change of the leader costs KEDA no
// answer. After a replica went away, a client that knew one address only would dial it for minutes.
func (s *Server) NeedLeaderElection() bool { return false }

// Start serves until ctx ends, which is no error. Where the certificate cannot be read it waits
// for one that can: for a broken Secret, nodes are not to stop growing.
func (s *Server) Start(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	logger := klog.FromContext(ctx).WithName("keda")
	ctx = klog.NewContext(ctx, logger)

	options := serverOptions()
	if s.options.TLS == (Files{}) {
		options = append(options, grpc.Creds(insecure.NewCredentials()))
	} else {
		certificates, err := waitForCertificates(ctx, s.options.TLS, s.options.Clock)
		if err != nil {
			return nil // ctx has ended
		}
		ended := certificates.start(ctx)
		defer func() { stop(); ended() }()
		options = append(options, grpc.Creds(certificates.credentials(ctx)))
	}
	server := grpc.NewServer(options...)
	externalscaler.RegisterExternalScalerServer(server, newGRPCService(ctx, s.scaler, s.options.Clock))

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.options.Address)
	if err != nil {
		return fmt.Errorf("serve KEDA on %s: %w: free the port or choose another", s.options.Address, err)
	}
	logger.Info("Serving KEDA's external scaler", "address", listener.Addr().String(), "tls", s.options.TLS.Certificate != "", "clientCertificates", s.options.TLS.ClientCA != "")
	if s.options.Listening != nil {
		s.options.Listening(listener.Addr())
	}
	return serve(ctx, server, netutil.LimitListener(listener, maxConnections))
}

func serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		// KEDA's client sends no pings of its own: a proxy or a service mesh before it may.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 20 * time.Second, PermitWithoutStream: true}),
		// A client whose node is gone says no goodbye, and its streams would be served for ever.
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time:                  time.Minute,
			Timeout:               20 * time.Second,
			MaxConnectionIdle:     10 * time.Minute,
			MaxConnectionAge:      connectionAge,
			MaxConnectionAgeGrace: streamAge + time.Minute,
		}),
	}
}

// serve returns when all handlers have, or when they were cut off after stopTimeout.
func serve(ctx context.Context, server *grpc.Server, listener net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		cutOff := time.AfterFunc(stopTimeout, server.Stop)
		defer cutOff.Stop()
		server.GracefulStop()
	}()
	err := server.Serve(listener)
	cancel()
	<-stopped
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve KEDA on %s: %w", listener.Addr(), err)
	}
	return nil
}
