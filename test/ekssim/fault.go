package ekssim

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

// Fault is how calls go wrong.
type Fault struct {
	// Operation is the API action, such as UpdateNodegroupConfig. Empty: all.
	Operation string
	// Times counts calls. 0: all.
	Times int
	// Latency delays the answer.
	Latency time.Duration
	// Status is the answer's, with Code and Message. 0: the call goes through.
	Status        int
	Code, Message string
	// Hangup executes the call and closes the connection without an answer.
	Hangup bool
}

// Throttled is EKS's answer to too many calls.
func Throttled(operation string, times int) Fault {
	return Fault{Operation: operation, Times: times, Status: http.StatusTooManyRequests, Code: "ThrottlingException", Message: "Rate exceeded"}
}

// Denied is IAM's answer to an action that no policy allows.
func Denied(operation string) Fault {
	return Fault{Operation: operation, Status: http.StatusForbidden, Code: "AccessDeniedException",
		Message: "User: arn:aws:sts::111122223333:assumed-role/mica/test is not authorized to perform: " + operation +
			" on resource: arn:aws:eks:ap-northeast-2:111122223333:nodegroup/one/gpu/0"}
}

// Broken is a failure of EKS itself.
func Broken(operation string, times int) Fault {
	return Fault{Operation: operation, Times: times, Status: http.StatusInternalServerError, Code: "ServerException", Message: "Internal error"}
}

// fault is an error answer of EKS.
type fault struct {
	status        int
	code, message string
}

func invalidParameter(format string, args ...any) *fault {
	return &fault{status: http.StatusBadRequest, code: "InvalidParameterException", message: fmt.Sprintf(format, args...)}
}

func notFound(format string, args ...any) *fault {
	return &fault{status: http.StatusNotFound, code: "ResourceNotFoundException", message: fmt.Sprintf(format, args...)}
}

// write answers as EKS does: the error's type in a header, the text in the body.
func (f *fault) write(w http.ResponseWriter) {
	w.Header().Set("X-Amzn-ErrorType", f.code)
	writeJSON(w, f.status, map[string]string{"message": f.message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}

// take returns the fault for a call, the zero Fault if there is none.
func (s *Server) take(operation string) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.faults {
		f := s.faults[i]
		if f.Operation != "" && f.Operation != operation {
			continue
		}
		if f.Times > 0 {
			s.faults[i].Times--
			if s.faults[i].Times == 0 {
				s.faults = append(s.faults[:i], s.faults[i+1:]...)
			}
		}
		return f
	}
	return Fault{}
}
