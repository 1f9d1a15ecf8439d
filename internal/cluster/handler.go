package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/apiserver/authn"
	"skiff/internal/store/etcd"
	"skiff/internal/upgrade"
)

const (
	// maxRequestBytes bounds the body of a request.
	maxRequestBytes = 64 << 10
	// retrySeconds is when a server should try again that cannot join now.
	retrySeconds = 1
)

// Handler serves the API. Requests must be authorized before they reach it.
type Handler struct {
	Members Members
	// KeyDir is the directory of the keys that all servers share.
	KeyDir string
	// Settings are those that a joining server must have.
	Settings Settings
	// Releases are the releases of the servers.
	Releases *Releases
	Log      *slog.Logger
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	response, err := h.serve(w, r)
	code := http.StatusOK
	if err != nil {
		failure := statusOf(err)
		if failure.Details != nil && failure.Details.RetryAfterSeconds > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(failure.Details.RetryAfterSeconds)))
		}
		response, code = failure, int(failure.Code)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The client may have closed the connection.
	_ = json.NewEncoder(w).Encode(response)
}

func statusOf(err error) metav1.Status {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	failure := status.Status()
	failure.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return failure
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (any, error) {
	name, isServer := strings.CutPrefix(r.URL.Path, path+"/")
	switch {
	case r.URL.Path == path && r.Method == http.MethodPost:
		return h.join(w, r)
	case r.URL.Path == path && r.Method == http.MethodGet:
		return h.list(r.Context())
	case isServer && name != "" && !strings.Contains(name, "/") && r.Method == http.MethodDelete:
		if err := h.Members.RemoveMember(r.Context(), name); err != nil {
			return nil, memberStatus(err)
		}
		h.Log.Info("server removed from the cluster", "server", name)
		return metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}, nil
	case r.URL.Path == path || isServer:
		return nil, apierrors.NewMethodNotSupported(Resource, r.Method)
	}
	return nil, apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, Resource, "", "the server could not find the requested resource", 0, false)
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: GroupVersion.String()}
}

// list returns the servers with their releases.
func (h *Handler) list(ctx context.Context) (any, error) {
	members, err := h.Members.Members(ctx)
	if err != nil {
		return nil, memberStatus(err)
	}
	recorded, err := h.Releases.List(ctx)
	if err != nil {
		return nil, err
	}
	list := ServerList{TypeMeta: typeMeta("ServerList")}
	for _, m := range members {
		server := Server{Member: m}
		if i := slices.IndexFunc(recorded, func(s upgrade.Server) bool { return s.Name == m.Name }); i >= 0 {
			server.Release = &recorded[i].Release
		}
		list.Items = append(list.Items, server)
	}
	return list, nil
}

// join adds a server. The keys it gets are those of the whole cluster, so whoever an authorizer lets through must also be an administrator or have
// the token of a server.
func (h *Handler) join(w http.ResponseWriter, r *http.Request) (any, error) {
	user, _ := authn.UserFrom(r.Context())
	if !slices.Contains(user.Groups, ServerGroup) && !slices.Contains(user.Groups, authn.GroupMasters) {
		return nil, apierrors.NewForbidden(Resource, "", fmt.Errorf("only tokens of 'skiff token create --server' let a server join"))
	}
	var request JoinRequest
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	if err := decoder.Decode(&request); err != nil {
		return nil, apierrors.NewBadRequest("decode the request: " + err.Error())
	}
	if differences := h.Settings.Differences(request.Settings); differences != "" {
		return nil, apierrors.NewBadRequest("the settings of the server differ from those of the cluster: " + differences)
	}
	if request.Release != nil {
		if err := h.Releases.Check(r.Context(), *request.Release); err != nil {
			return nil, releaseStatus(err)
		}
	}
	keys, err := exportKeys(h.KeyDir)
	if err != nil {
		return nil, err
	}
	members, err := h.Members.AddLearner(r.Context(), request.PeerURL)
	if err != nil {
		return nil, memberStatus(err)
	}
	h.Log.Info("server joins the cluster", "peerURL", request.PeerURL, "user", user.Username)
	return JoinResponse{TypeMeta: typeMeta("JoinResponse"), Keys: keys, Members: members}, nil
}

// releaseStatus is the status of a failed check of a release.
func releaseStatus(err error) error {
	if _, isRefused := errors.AsType[*upgrade.Refusal](err); isRefused {
		return apierrors.NewBadRequest(err.Error())
	}
	return err
}

// memberStatus is the status of a failed change of the members.
func memberStatus(err error) error {
	switch {
	case errors.Is(err, etcd.ErrNotNow):
		unavailable := apierrors.NewServiceUnavailable(err.Error())
		unavailable.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retrySeconds}
		return unavailable
	case errors.Is(err, etcd.ErrMemberRuns):
		return apierrors.NewConflict(Resource, "", err)
	case errors.Is(err, etcd.ErrNoMember):
		return apierrors.NewNotFound(Resource, strings.TrimPrefix(err.Error(), etcd.ErrNoMember.Error()+": "))
	}
	return err
}
