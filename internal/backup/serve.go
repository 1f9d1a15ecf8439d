package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Path is where a Saver is served: POST requests a snapshot, GET of Path/NAME says how far it is. A snapshot can take longer than a request may.
const Path = "/snapshots"

// maxBodyBytes is the size of the largest body of a request.
const maxBodyBytes = 4096

// saveRequest is the body of a POST.
type saveRequest struct {
	// Name is what the name of the snapshot begins with.
	Name string `json:"name"`
}

var resource = schema.GroupResource{Resource: "snapshots"}

// ServeHTTP implements http.Handler. Requests must be authorized before they reach it.
func (s *Saver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	code, response, err := s.serve(w, r)
	if err != nil {
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			status = apierrors.NewInternalError(err)
		}
		failure := status.Status()
		failure.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		code, response = int(failure.Code), failure
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(response) // the client may have closed the connection
}

func (s *Saver) serve(w http.ResponseWriter, r *http.Request) (int, any, error) {
	name, isOne := strings.CutPrefix(r.URL.Path, Path+"/")
	switch {
	case isOne && r.Method == http.MethodGet:
		if last := s.lastRequest(); name != "" && last.Name == name {
			return http.StatusOK, last, nil
		}
		return 0, nil, apierrors.NewNotFound(resource, name)
	case isOne || r.Method != http.MethodPost:
		return 0, nil, apierrors.NewMethodNotSupported(resource, r.Method)
	}
	var request saveRequest
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	if err != nil {
		return 0, nil, apierrors.NewBadRequest(err.Error())
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return 0, nil, apierrors.NewBadRequest(err.Error())
	}
	if err := ValidatePrefix(request.Name); err != nil {
		return 0, nil, apierrors.NewBadRequest("name: " + err.Error())
	}
	save, ok := s.request(request.Name)
	if !ok {
		return 0, nil, apierrors.NewConflict(resource, save.Name, errors.New("it is being saved; try again later"))
	}
	return http.StatusAccepted, save, nil
}

// pollInterval is how often Request asks whether a snapshot was saved.
const pollInterval = 200 * time.Millisecond

// Request has a server save a snapshot, and waits until it has.
func Request(ctx context.Context, server rest.Interface, prefix string) (Save, error) {
	body, err := json.Marshal(saveRequest{Name: prefix})
	if err != nil {
		return Save{}, err
	}
	var save Save
	err = decode(server.Post().AbsPath(Path).SetHeader("Content-Type", "application/json").Body(body).Do(ctx), &save)
	for err == nil && save.State == Saving {
		select {
		case <-time.After(pollInterval):
			err = decode(server.Get().AbsPath(Path+"/"+save.Name).Do(ctx), &save)
		case <-ctx.Done():
			return save, ctx.Err()
		}
	}
	if err != nil {
		return save, err
	}
	if save.State != Saved {
		return save, fmt.Errorf("save snapshot %s: %s", save.Name, save.Error)
	}
	return save, nil
}

func decode(result rest.Result, object any) error {
	data, err := result.Raw()
	if err != nil {
		// Raw does not decode the Status of an error; Error does.
		if read := result.Error(); read != nil {
			return read
		}
		return err
	}
	return json.Unmarshal(data, object)
}
