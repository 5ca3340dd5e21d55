package main

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// zone is the domain of the cluster, as KEDA and most others take it for granted.
	zone = ".svc.cluster.local."
	// answerTTL is in seconds: an endpoint that went away is not asked for long.
	answerTTL = 1
)

// finder gives the addresses behind a Service, and whether there is such a Service.
type finder func(namespace, service string) (addresses []netip.Addr, known bool)

// answer replies to a query for the addresses of a Service. A name that is none's does not
// exist, whatever type is asked for; a Service has addresses and nothing else.
func answer(query []byte, find finder) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, fmt.Errorf("read a query's header: %w", err)
	}
	question, err := parser.Question()
	if err != nil {
		return nil, fmt.Errorf("read a query's question: %w", err)
	}
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: header.ID, Response: true, Authoritative: true,
			RecursionDesired: header.RecursionDesired, RCode: dnsmessage.RCodeNameError,
		},
		Questions: []dnsmessage.Question{question},
	}
	if namespace, service, ok := serviceOf(question.Name.String()); ok {
		if addresses, known := find(namespace, service); known {
			reply.RCode = dnsmessage.RCodeSuccess
			reply.Answers = records(question, addresses)
		}
	}
	return reply.Pack()
}

func records(question dnsmessage.Question, addresses []netip.Addr) []dnsmessage.Resource {
	if question.Type != dnsmessage.TypeA {
		return nil
	}
	var all []dnsmessage.Resource
	for _, address := range addresses {
		if address.Is4() {
			all = append(all, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET, TTL: answerTTL},
				Body:   &dnsmessage.AResource{A: address.As4()},
			})
		}
	}
	return all
}

// serviceOf splits a name such as "keda-operator.keda.svc.cluster.local.".
func serviceOf(name string) (namespace, service string, ok bool) {
	rest, inZone := strings.CutSuffix(strings.ToLower(name), zone)
	service, namespace, two := strings.Cut(rest, ".")
	return namespace, service, inZone && two && service != "" && namespace != "" && !strings.Contains(namespace, ".")
}
