package keda

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// resolve is the address of a name server that gives each name the addresses, as a cluster's does
// for a headless Service.
func resolve(t *testing.T, addresses ...string) string {
	t.Helper()
	connection, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- answerNames(connection, addresses) }()
	t.Cleanup(func() {
		connection.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return connection.LocalAddr().String()
}

func answerNames(connection net.PacketConn, addresses []string) error {
	buffer := make([]byte, 1500)
	for {
		n, client, err := connection.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		var message dnsmessage.Message
		if err := message.Unpack(buffer[:n]); err != nil {
			return err
		}
		message.Response, message.Additionals = true, nil
		if question := message.Questions[0]; question.Type == dnsmessage.TypeA {
			header := dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class}
			for _, address := range addresses {
				body := &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())}
				message.Answers = append(message.Answers, dnsmessage.Resource{Header: header, Body: body})
			}
		}
		packed, err := message.Pack()
		if err != nil {
			return err
		}
		if _, err := connection.WriteTo(packed, client); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		}
	}
}
